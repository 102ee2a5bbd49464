/* Ids of messages: where new ones come from, and those of the last messages. */
#ifndef SHARDD_PARTITION_MESSAGE_IDS_H
#define SHARDD_PARTITION_MESSAGE_IDS_H
#include "log/batch.h"
#include "log/id_window.h"

typedef struct message_ids {
    id_window *window; /* NULL: ids are not compared */
    id_source *source;
} message_ids;
#endif
