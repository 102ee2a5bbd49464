/* The file of producers.h (private to producers*.c). */
#ifndef SHARDD_PRODUCERS_FILE_H
#define SHARDD_PRODUCERS_FILE_H
#include "log/producers.h"

/* Writes one slot; the file and the entry are made when they are missing. 0 or -1. */
int producers_file_put(producers *p, producer_entry *e, const producer_slot *s);
/* Best effort: one that comes back with the next start is swept again. */
void producers_file_drop(producers *p, producer_entry *e);
/* A batch of so many messages has a slot that no sync has brought to the device yet. */
void producers_count(producers *p, uint32_t messages);
void producers_file_close(producers *p);
#endif
