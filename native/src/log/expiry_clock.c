/* See expiry_clock.h. */
#include "log/expiry_clock.h"

uint64_t expiry_clock_now(expiry_clock *c) {
    int64_t now = c->monotonic_us(c->context), ahead = (int64_t)c->wall_us(c->context) - now;
    int64_t jump = c->running ? ahead - c->ahead_us : 0;
    bool large = c->jump_max_us > 0 && jump > 0 && (uint64_t)jump > c->jump_max_us;
    if (large && !c->doubted) {
        c->doubted_since_us = now;
        c->jumps++;
    }
    c->doubted = large && (uint64_t)(now - c->doubted_since_us) < c->jump_max_us;
    c->jump_us = c->doubted ? (uint64_t)jump : 0;
    if (!c->doubted) c->ahead_us = ahead;
    c->running = true;
    return (uint64_t)(now + c->ahead_us);
}

void expiry_clock_begin(expiry_clock *c, uint64_t believed_us) {
    c->ahead_us = (int64_t)believed_us - c->monotonic_us(c->context);
    c->running = true;
}
