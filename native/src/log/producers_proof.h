/* What the bytes of the file of producers.h say, for whoever reads it: the partition, and a recovery before it (private
 * to producers*.c and recover.c). Pure functions. */
#ifndef SHARDD_PRODUCERS_PROOF_H
#define SHARDD_PRODUCERS_PROOF_H
#include "log/producers.h"

#define PRODUCERS_MAGIC "SHRDPROD"
#define VERSION 3u
#define VERSION_WITHOUT_DIGESTS 2u
#define VERSION_FIRST 1u
#define COVERED_AT 64u
#define HALF_BYTES 32u
#define SLOT_BYTES 64u
#define ENTRY_HEAD_BYTES 64u

/* Which sizes a version has. */
typedef struct producers_layout {
    uint32_t version, slot_bytes, entry_bytes;
} producers_layout;

/* Of a file that begins with this head. False: a file of another kind or version. */
bool producers_layout_of(const uint8_t *content, size_t length, producers_layout *out);
uint64_t producers_check(uint64_t incarnation, uint64_t producer, const uint8_t *bytes, size_t length);
bool producers_is_zero(const uint8_t *at, size_t length);
/* False: there is none, or it is torn. */
bool producers_slot(const producers_layout *l, uint64_t incarnation, uint64_t producer, const uint8_t *at,
                    producer_slot *out);
bool producers_there(const producer_slot *s, uint64_t end);       /* a log that ends there has the batch */
bool producers_ends_inside(const producer_slot *s, uint64_t end); /* it has a part of it */
uint32_t producers_half_batches(uint64_t batches, bool durable);  /* bytes 20 to 24 of a half */
bool producers_half_unflag(uint8_t half[HALF_BYTES]);             /* false: it was not written at level durable */
/* Whether all slots of a log that ends there were on the device: a sync is known to have brought them, or none is
 * missing of those that a sync was to bring. One that a later batch has overwritten is missing, too. */
bool producers_prove(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t end);
#endif
