/* Ids of messages: where new ones come from, and those of the last messages (log/id_window.h), so that no message is
 * stored twice. A partition without a window pays nothing. */
#ifndef SHARDD_PARTITION_MESSAGE_IDS_H
#define SHARDD_PARTITION_MESSAGE_IDS_H
#include "log/id_window.h"
#include "log/partition.h"

typedef struct message_ids {
    id_window *window; /* NULL: ids are not compared */
    id_source *source;
} message_ids;

/* The functions of partition.h, on the ids alone. */
bool message_ids_set_window(message_ids *ids, id_memory *memory, uint64_t entries_max, uint64_t age_us);
bool message_ids_load(message_ids *ids, expiry_clock *clock, const uint8_t *entries, size_t count);
void message_ids_expire(message_ids *ids, uint64_t now_us);
bool message_ids_reserve(message_ids *ids, uint64_t count, uint64_t now_us);
bool message_ids_filter(message_ids *ids, append_batch *b, size_t behind, id_filter *f, id_group *g, uint32_t most,
                        uint64_t now_us);
void message_ids_take_back(message_ids *ids, uint64_t count);
/* The window has ids of messages before `end`: a restart reads them in their segments. */
bool message_ids_hold(message_ids *ids, uint64_t steady_us, uint64_t next_offset, uint64_t end);

static inline bool message_ids_are_compared(const message_ids *ids) { return ids->window != NULL; }
static inline id_source *message_ids_source(const message_ids *ids) { return ids->source; }
#endif
