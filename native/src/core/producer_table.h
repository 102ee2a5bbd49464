/* The producers of the server as the metadata have them, by id: what every shard knows. Open addressing. */
#ifndef SHARDD_PRODUCER_TABLE_H
#define SHARDD_PRODUCER_TABLE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct known_producer {
    uint64_t id; /* 0: free */
    uint64_t begun;
    uint32_t user_id, epoch;
} known_producer;

typedef struct producer_table {
    known_producer *slots; /* NULL until the first one */
    uint32_t capacity, count;
} producer_table;

const known_producer *producer_table_find(const producer_table *t, uint64_t id); /* NULL: none */
bool producer_table_put(producer_table *t, const known_producer *producer);      /* false: no memory */
void producer_table_drop(producer_table *t, uint64_t id);
void producer_table_free(producer_table *t);
#endif
