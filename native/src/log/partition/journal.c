/* The journal of level `memory`: acknowledged records that the file does not have yet, as they will stand in it. It is
 * written in front of the batch that would fill it, before a poll that reaches it, by the message saver, at a flush, at
 * a roll and at the close; while it cannot be written it stays, and the batches that do not fit are refused. */
#include "log/partition/inside.h"

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

static bool grow(partition *p, uint64_t bytes) {
    size_t capacity = p->journal.capacity > 0 ? p->journal.capacity : JOURNAL_BLOCK_MIN;
    while (capacity < bytes) capacity *= 2;
    if (capacity == p->journal.capacity) return true;
    uint8_t *block = take_block(p->journal.memory, capacity);
    if (block == NULL) return false;
    if (p->journal.bytes != NULL) {
        memcpy(block, p->journal.bytes, p->journal.length);
        give_block(p->journal.memory, p->journal.bytes, p->journal.capacity);
    }
    p->journal.bytes = block;
    p->journal.capacity = capacity;
    return true;
}

bool partition_journal_take(partition *p, const struct iovec *parts, size_t count, uint64_t bytes, uint64_t records) {
    uint64_t length = p->journal.length + bytes;
    if (length >= p->journal.bytes_max || p->journal.records + records >= p->journal.records_max || !grow(p, length))
        return false;
    for (size_t i = 0; i < count; i++) {
        memcpy(p->journal.bytes + p->journal.length, parts[i].iov_base, parts[i].iov_len);
        p->journal.length += parts[i].iov_len;
    }
    p->journal.records += records;
    ASSERT(p->journal.length == length && length <= p->journal.capacity);
    return true;
}

void partition_journal_clear(partition *p) {
    if (p->journal.bytes != NULL) give_block(p->journal.memory, p->journal.bytes, p->journal.capacity);
    p->journal.bytes = NULL;
    p->journal.capacity = 0;
    p->journal.length = p->journal.records = 0;
}

uint64_t partition_unsaved_bytes(const partition *p) { return p->journal.length; }
