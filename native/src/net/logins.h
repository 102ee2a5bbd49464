/* What is known about logins, over all workers of the server, in the shared region. Policy is Python's
 * (shardd/security/backoff.py).
 *
 * Failures are counted under keys (an address, an account, both), not kept by name: two rows of cells under a hash with
 * a random seed, the smaller of the two counts. So there is nothing to evict: nobody makes room for himself by failing
 * under many keys. Every minute halves a count. An attempt counts as failed from its beginning until it is taken back.
 *
 * Pairs of address and account that logged in are kept by fingerprint in places of the account, the oldest leaves. */
#ifndef SHARDD_LOGINS_H
#define SHARDD_LOGINS_H
#include "io/links.h"

uint64_t logins_key(const links *l, const void *text, size_t length);

uint32_t logins_failures(const links *l, uint64_t key, uint64_t now_us);
void logins_begin(links *l, uint64_t key, uint64_t now_us);
void logins_take_back(links *l, uint64_t key, uint64_t now_us); /* one attempt: it did not fail */
void logins_clear(links *l, uint64_t key, uint64_t now_us);     /* all of them */
/* Books the next moment under the key, at least `wait_us` after the one before it and after now. Two workers that ask
 * at the same time may get the same one. */
uint64_t logins_moment(links *l, uint64_t key, uint64_t now_us, uint64_t wait_us);

void logins_remember(links *l, uint64_t account, uint64_t pair, uint64_t now_us);
/* Whether the pair was remembered less than `age_us` ago. */
bool logins_is_known(const links *l, uint64_t account, uint64_t pair, uint64_t now_us, uint64_t age_us);
#endif
