/* Reads of the page cache alone: the same for every implementation of io.h. */
#ifndef SHARDD_READ_CACHED_H
#define SHARDD_READ_CACHED_H
#include "io/io.h"

int read_cached(io *i, int fd, void *data, size_t length, uint64_t position);
#endif
