/* The end of a request: first what it means for the memberships of who asked, then the answer. */
#include "core/caller.h"

void caller_status(const caller *to, uint32_t status) {
    if (to->session != NULL) session_failed(to->session);
    to->calls->status(to, status);
}

void caller_end(const caller *to, const outcome *o) {
    if (o->status == 0 && o->made.kind != PRODUCED_NONE) {
        to->calls->produced(to, &o->made);
        return;
    }
    if (o->status != 0 || !o->committed) {
        caller_status(to, o->status);
        return;
    }
    if (to->session != NULL) session_committed(to->session);
    to->calls->committed(to, o->offset);
}

void caller_window(const caller *to, const answer_window *w) {
    if (w->last && to->session != NULL) session_polled(to->session, w->whole.total_count, w->whole.last_offset);
    to->calls->window(to, w);
}

void caller_again(const caller *to) {
    if (to->session != NULL) session_start_over(to->session);
    to->calls->again(to);
}
