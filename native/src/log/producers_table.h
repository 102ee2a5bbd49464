/* What producers.h has in memory (private to producers*.c). */
#ifndef SHARDD_PRODUCERS_TABLE_H
#define SHARDD_PRODUCERS_TABLE_H
#include "log/producers.h"

producer_entry *producers_find(const producers *p, uint64_t producer); /* NULL: there is none */
producer_entry *producers_enter(producers *p, uint64_t producer);      /* NULL: no room, or no memory */
producer_entry *producers_add(producers *p, uint64_t producer);        /* whatever the bounds say; NULL: no memory */
void producers_begin_epoch(producer_entry *e, uint32_t epoch);
void producers_take(producer_entry *e, const producer_slot *s); /* of the file, or a new one */
void producers_forget(producers *p, producer_entry *e);
void producers_clear(producers *p);
#endif
