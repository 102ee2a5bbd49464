/* Placement: known values (docs/protocol/records.md#placement). */
#include "base/hash.h"

#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "namespace.h"

static void test_owner_examples(void) {
    static const struct {
        uint32_t stream, topic, partition, hash, owner2, owner6, owner64;
    } rows[] = {
        {0, 0, 0, 0x63852afc, 1, 1, 5},
        {0, 0, 4, 0xd0220d26, 0, 2, 34},
        {0, 1, 0, 0x3af90404, 1, 1, 57},
        {1, 0, 0, 0x3ad85688, 0, 4, 24},
        {1, 2, 3, 0x1119bd6a, 1, 3, 25},
        {2, 5, 11, 0x05090bc4, 1, 5, 9},
        {42, 17, 99, 0x04f7a6fd, 1, 5, 55},
        {1023, 1023, 1023, 0x9fd62dfb, 0, 4, 22},
        {4095, 4095, 999999, 0x9502afba, 0, 4, 2},
        {4095, 4095, 1048575, 0x8566877f, 0, 4, 38},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t ns = namespace_of(rows[i].stream, rows[i].topic, rows[i].partition);
        CHECK_EQUAL(hash_murmur3_u64(ns), rows[i].hash);
        CHECK_EQUAL(hash_owner(ns, 1), 0);
        CHECK_EQUAL(hash_owner(ns, 2), rows[i].owner2);
        CHECK_EQUAL(hash_owner(ns, 6), rows[i].owner6);
        CHECK_EQUAL(hash_owner(ns, 64), rows[i].owner64);
    }
}

static void test_namespace_bits(void) {
    CHECK_EQUAL(namespace_of(1, 2, 3), 4297064451u);
    CHECK_EQUAL(namespace_of(4095, 4095, 1048575), 17592186044415u);
}

static void test_xxh32(void) {
    CHECK_EQUAL(hash_xxh32("", 0), 0x02cc5d05); /* the published vectors of XXH32, seed 0 */
    CHECK_EQUAL(hash_xxh32("abc", 3), 0x32d153ff);
}

/* The partitions of one shard, in a table that they fill to a half: as many places are hit as chance would hit, so
 * that none has to look for long. (By the hash of the owner, some bits of which are equal, it was half as many.) */
static void test_places_of_the_partitions_of_one_shard_are_spread(void) {
    enum { BITS = 17, PLACES = 1 << BITS, USED = PLACES / 2 };
    static bool hit[PLACES];
    for (uint32_t shards = 1; shards <= 16; shards *= 2) {
        memset(hit, 0, sizeof(hit));
        unsigned used = 0, places = 0;
        for (uint32_t topic = 0; used < USED; topic++)
            for (uint32_t partition = 0; partition < 1000 && used < USED; partition++) {
                uint64_t ns = namespace_of(topic / 4096, topic % 4096, partition);
                if (hash_owner(ns, shards) != shards - 1) continue;
                used++;
                places += !hit[hash_place(ns) & (PLACES - 1)];
                hit[hash_place(ns) & (PLACES - 1)] = true;
            }
        CHECK(places > USED * 3 / 4); /* by chance 0.787 of them */
    }
}

int main(void) {
    RUN(test_owner_examples);
    RUN(test_namespace_bits);
    RUN(test_xxh32);
    RUN(test_places_of_the_partitions_of_one_shard_are_spread);
    return check_report();
}
