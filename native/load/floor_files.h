/* Files of the floor server: one per (stream, partition), made at the first append. Safe for several threads, except
 * that a stream may only be deleted while nobody uses it. */
#ifndef LOAD_FLOOR_FILES_H
#define LOAD_FLOOR_FILES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLOOR_STREAMS_MAX = 4096,
    FLOOR_PARTITIONS_MAX = 16,
    FLOOR_PARTITIONS_KEYED = 12,
    FLOOR_PARTITIONS_BALANCED = 6
};

typedef struct floor_file floor_file;

/* `sync`: every append ends with an fdatasync of its file. */
void floor_files_open(const char *directory, bool sync);
/* NULL when the ids are beyond the table or the file cannot be made. */
floor_file *floor_file_get(uint32_t stream, uint32_t partition);
/* Appends whole records; the first one of a file tells the size of all. False on an error or a short write. */
bool floor_file_append(floor_file *file, const uint8_t *records, size_t length);
/* Those that are written as a whole, up to the first gap. */
uint64_t floor_file_records(const floor_file *file);
uint64_t floor_file_record_bytes(const floor_file *file);
bool floor_file_read(floor_file *file, uint64_t first_record, uint8_t *into, size_t length);
void floor_files_delete(uint32_t stream);
#endif
