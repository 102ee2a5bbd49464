/* The file of the stored offsets and its descriptor (private to offsets*.c). */
#ifndef SHARDD_OFFSETS_FILES_H
#define SHARDD_OFFSETS_FILES_H
#include "base/status.h"
#include "log/offsets.h"

/* The descriptor, opened or with a file made of what is in memory. -1 and errno. */
int offsets_file(offsets *o);
/* Makes the file anew of what is in memory: all places change. 0, or -1 and errno: nothing has changed. */
int offsets_file_make(offsets *o);
/* Writes one half, with the next sequence. 0, 10006. */
uint32_t offsets_file_put(offsets *o, uint32_t place, uint8_t half, offsets_half *content);
/* Writes whole places from `first` on, into the file that is open. 0 or -1. */
int offsets_file_write(offsets *o, uint32_t first, uint8_t *data, uint32_t count);
void offsets_file_close(offsets *o);
int offsets_file_open(const offsets *o, int flags); /* -1 and errno */
/* Without a table: -1 and EIO where files of format version 1 lie there, which the start could not read, else 0. */
int offsets_file_early(const offsets *o);
#endif
