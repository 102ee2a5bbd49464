/* Buffer pool of one worker: a buddy allocator over a shared memfd.
 *
 * Blocks are powers of two from 4 KiB to 128 MiB, page aligned. The capacity is a hard cap:
 * pool_alloc answers NULL above it and the caller waits. Memory that was never touched costs
 * nothing; pool_trim gives resident free memory back (fallocate PUNCH_HOLE) above a watermark.
 * Peers map the same memfd read-only; a lease is (offset, length) inside it.
 * Single-threaded: only the owning worker's loop thread calls it.
 */
#ifndef SHARDD_POOL_H
#define SHARDD_POOL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_BLOCK_MIN 4096u
#define POOL_BLOCK_MAX (128u << 20)

typedef struct pool pool;

/* Maps `memfd` (which is resized to `capacity_bytes`, rounded down to a multiple of 1 MiB, at least
 * 8 MiB). NULL and errno on failure. The memfd stays the caller's. */
pool *pool_create(int memfd, size_t capacity_bytes);
void pool_destroy(pool *p);
/* A block of at least `bytes` (1 .. POOL_BLOCK_MAX), page aligned; NULL when the cap is reached. */
void *pool_alloc(pool *p, size_t bytes);
/* Like pool_alloc, but leaves `reserve_bytes` of the capacity untouched for others. */
void *pool_alloc_reserving(pool *p, size_t bytes, size_t reserve_bytes);
void pool_free(pool *p, void *block);
size_t pool_block_size(const pool *p, const void *block); /* real size of an allocated block */
size_t pool_capacity(const pool *p);
size_t pool_used(const pool *p);     /* bytes in allocated blocks */
size_t pool_resident(const pool *p); /* upper bound of touched bytes: used + free-but-touched */
uint64_t pool_offset(const pool *p, const void *address);
/* Gives free touched memory back to the kernel until at most `keep_bytes` of it remain. */
/* At most about `slice_bytes` at a time; true: there is more to give back. */
bool pool_trim(pool *p, size_t keep_bytes, size_t slice_bytes);
#endif
