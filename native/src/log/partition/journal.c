/* See journal.h. */
#include "log/partition/journal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define JOURNAL_BLOCK_MIN 4096u

static void *take_block(journal_memory *memory, size_t bytes) {
    if (memory == NULL) return malloc(bytes);
    if (memory->used_bytes + bytes > memory->bytes_max) return NULL;
    void *block = memory->take(memory->context, bytes);
    if (block != NULL) memory->used_bytes += bytes;
    return block;
}

static void give_block(journal_memory *memory, void *block, size_t bytes) {
    if (memory == NULL) {
        free(block);
        return;
    }
    ASSERT(memory->used_bytes >= bytes);
    memory->give(memory->context, block);
    memory->used_bytes -= bytes;
}

void journal_open(journal *j, journal_memory *memory, uint64_t bytes_max, uint64_t records_max) {
    *j = (journal){.memory = memory, .bytes_max = bytes_max, .records_max = records_max};
}

static bool grow(journal *j, uint64_t bytes) {
    size_t capacity = j->capacity > 0 ? j->capacity : JOURNAL_BLOCK_MIN;
    while (capacity < bytes) capacity *= 2;
    if (capacity == j->capacity) return true;
    uint8_t *block = take_block(j->memory, capacity);
    if (block == NULL) return false;
    if (j->bytes != NULL) {
        memcpy(block, j->bytes, j->length);
        give_block(j->memory, j->bytes, j->capacity);
    }
    j->bytes = block;
    j->capacity = capacity;
    return true;
}

bool journal_take(journal *j, const struct iovec *batches, size_t count, uint64_t bytes, uint64_t records) {
    uint64_t length = j->length + bytes;
    if (length >= j->bytes_max || j->records + records >= j->records_max || !grow(j, length)) return false;
    for (size_t i = 0; i < count; i++) {
        memcpy(j->bytes + j->length, batches[i].iov_base, batches[i].iov_len);
        j->length += batches[i].iov_len;
    }
    j->records += records;
    ASSERT(j->length == length && length <= j->capacity);
    return true;
}

void journal_free(journal *j) {
    if (j->bytes != NULL) give_block(j->memory, j->bytes, j->capacity);
    j->bytes = NULL;
    j->capacity = 0;
    j->length = j->records = 0;
}
