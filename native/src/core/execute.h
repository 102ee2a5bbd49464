/* What becomes of a typed request: it is answered, staged, read for or forwarded here; or somebody else decides. */
#ifndef SHARDD_EXECUTE_H
#define SHARDD_EXECUTE_H
#include "core/core.h"

typedef enum execution {
    EXECUTED,     /* the caller has heard, or will hear, how it ended; with all others it hears nothing */
    NEEDS_ROUTE,  /* Python resolves stream and topic, then once more */
    NEEDS_PYTHON, /* it decides */
    NEEDS_PLACE,  /* among the descriptors to another shard: wait, then once more */
    NOT_WANTED    /* the caller has gone */
} execution;

execution execute_request(core *k, session *s, request *q, const caller *from);
/* A poll of a member whose partition and consumer Python chose; EVENT_GROUP_POLLED comes with its end. */
execution execute_for_group(core *k, session *s, uint32_t owner, partition_request *what, const caller *from);
uint32_t execute_store(owned *target, const partition_request *what); /* kind, consumer, value, assignment -> status */
/* POLL or STORE of a partition here. */
void execute_here(core *k, owned *target, const partition_request *what, const caller *from);
#endif
