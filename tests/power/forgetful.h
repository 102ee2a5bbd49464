/* The two halves of the program: the calls of the kernel (calls.c), power and syncs (forgetful.c). */
#ifndef FORGETFUL_H
#define FORGETFUL_H
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "store.h"

extern store memory;
extern bool frozen; /* the power is off */
extern const struct fuse_lowlevel_ops calls;

/* Before every operation that a cut may come in front of. False: there is no power. */
bool powered(char kind);

/* Begins a sync, which is answered when it ends. */
void start_sync(fuse_req_t request, uint32_t number);
#endif
