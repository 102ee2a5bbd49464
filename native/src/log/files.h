/* Small file helpers of the partition: whole writes and reads over the disk seam, directories, files that appear whole.
 * Every function continues after EINTR and leaves errno when it fails. */
#ifndef SHARDD_FILES_H
#define SHARDD_FILES_H
#include "io/disk.h"
#include "log/file_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FILE_PATH_MAX 4096u

/* Where the files of one partition are. */
typedef struct log_files {
    const disk *disk;
    char *directory;
    uint64_t incarnation;
} log_files;

/* Without a free descriptor: closes cold files of the log (`cache`) and tries again, so `fd` and whatever the
 * caller still needs must be pinned, dirty or not of the log. The same for file_duplicate. */
int file_open(const disk *d, file_cache *cache, const char *path, int flags);
int file_duplicate(const disk *d, file_cache *cache, int fd);
/* Writes all parts from `position` on, at most IOV_MAX per system call; `parts` is used up. `written` (may be NULL) is
 * what the kernel took, also on failure. 0 or -1. */
int file_write(const disk *d, int fd, struct iovec *parts, size_t count, uint64_t position, uint64_t *written);
/* Reads exactly `length` bytes. 0 or -1; ENODATA when the file ends before. */
int file_read(const disk *d, int fd, void *data, size_t length, uint64_t position);
int file_truncate(const disk *d, int fd, uint64_t length);
/* mkdir -p. `made` is how many directories are new: `path` itself and its next made - 1 ancestors. 0 or -1. */
int file_make_directories(const disk *d, const char *path, unsigned *made);
/* A new file: one that is there goes first, because a power loss could bring back what it held. The open descriptor, or
 * -1. */
int file_create_anew(const disk *d, file_cache *cache, const char *path);
/* Makes `path` with its whole content or not at all: "<path>.tmp", then rename. The open descriptor, or -1. */
int file_make_whole(const disk *d, file_cache *cache, const char *path, void *data, size_t length);
/* The same in the place of a file whose content was promised: the device has the new one before it gets the name. */
int file_make_whole_durably(const disk *d, file_cache *cache, const char *path, void *data, size_t length);
/* Errors after which nobody knows what the device holds: the partition takes no more writes. */
bool file_error_poisons(int error);
#endif
