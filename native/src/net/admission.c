/* See admission.h. */
#include "net/admission.h"

#include "net/stream.h"

#define XXH_INLINE_ALL
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <xxhash.h>

bool admission_parse_host(const char *host, struct sockaddr_storage *address) {
    struct sockaddr_in *v4 = (void *)address;
    struct sockaddr_in6 *v6 = (void *)address;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) address->ss_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) address->ss_family = AF_INET6;
    else return false;
    return true;
}

uint64_t admission_network(const links *l, const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET)
        return XXH3_64bits_withSeed(&((const struct sockaddr_in *)(const void *)address)->sin_addr, 4, l->seed);
    if (address->ss_family == AF_UNIX) { /* longer than any IPv4 host: no collision by content */
        const struct {
            char kind[4];
            uint32_t uid;
        } user = {"unix", ((const local_peer *)(const void *)address)->uid};
        return XXH3_64bits_withSeed(&user, sizeof user, l->seed);
    }
    if (address->ss_family != AF_INET6) return 0;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(v6)) return XXH3_64bits_withSeed(v6->s6_addr + 12, 4, l->seed);
    return XXH3_64bits_withSeed(v6->s6_addr, 8, l->seed);
}

static _Atomic uint32_t *address_counter(const links *l, uint32_t shard, uint32_t row, uint64_t network) {
    uint32_t column = (uint32_t)(network >> (32 * row)) % SHARED_ADDRESS_COLUMNS;
    return &l->addresses[((size_t)shard * SHARED_ADDRESS_ROWS + row) * SHARED_ADDRESS_COLUMNS + column];
}

/* Only the owner writes its counts: no read-modify-write is needed. */
static void change(_Atomic uint32_t *count, int by) {
    atomic_store(count, atomic_load_explicit(count, memory_order_relaxed) + (uint32_t)by);
}

static void change_all(links *l, uint64_t network, bool anonymous, int by) {
    worker_page *page = links_page(l, l->shard);
    change(&page->connections, by);
    if (anonymous) change(&page->anonymous, by);
    for (uint32_t row = 0; row < SHARED_ADDRESS_ROWS; row++) change(address_counter(l, l->shard, row, network), by);
}

void admission_add(links *l, uint64_t network, bool anonymous) { change_all(l, network, anonymous, 1); }
void admission_leave(links *l, uint64_t network, bool anonymous) { change_all(l, network, anonymous, -1); }
void admission_anonymous(links *l, int by) { change(&links_page(l, l->shard)->anonymous, by); }

admission admission_enter(links *l, const bool *peer_is_down, const admission_limits *limits, uint64_t network) {
    uint64_t connections = 0, anonymous = 0, rows[SHARED_ADDRESS_ROWS] = {0};
    change_all(l, network, true, 1);
    atomic_thread_fence(memory_order_seq_cst); /* our entry before the look at those of the others */
    for (uint32_t shard = 0; shard < l->shards; shard++) {
        if (peer_is_down[shard]) continue;
        const worker_page *page = links_page(l, shard);
        connections += atomic_load(&page->connections);
        anonymous += atomic_load(&page->anonymous);
        for (uint32_t row = 0; row < SHARED_ADDRESS_ROWS; row++)
            rows[row] += atomic_load(address_counter(l, shard, row, network));
    }
    uint64_t same_address = rows[0] < rows[1] ? rows[0] : rows[1];
    admission result = connections > limits->connections    ? REFUSED_TOTAL
                       : same_address > limits->per_address ? REFUSED_ADDRESS
                       : anonymous > limits->before_login   ? REFUSED_BEFORE_LOGIN
                                                            : ADMITTED;
    if (result != ADMITTED) change_all(l, network, true, -1);
    return result;
}
