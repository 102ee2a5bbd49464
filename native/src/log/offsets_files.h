/* Files of the consumer offsets and their descriptors (private to offsets*.c). */
#ifndef SHARDD_OFFSETS_FILES_H
#define SHARDD_OFFSETS_FILES_H
#include "log/offsets.h"
#include "base/status.h"

offset_entry *offsets_find(const offsets *o, uint8_t kind, uint32_t id);
/* Writes `value` in place, or makes the file. `entry->value` is what the file holds until then. 0, 10006, 3023. */
uint32_t offset_file_write(offsets *o, offset_entry *entry, uint64_t value);
int offset_file_remove(offsets *o, uint8_t kind, uint32_t id); /* 0 (also when there was none) or -1 */
void offset_file_close(offsets *o, offset_entry *entry);
#endif
