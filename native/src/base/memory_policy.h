/* NUMA memory policy through the system calls themselves; libnuma is not needed for three of them. */
#ifndef SHARDD_MEMORY_POLICY_H
#define SHARDD_MEMORY_POLICY_H
#include <stddef.h>
#include <stdint.h>

#define MEMORY_NODES_MAX 1024u

typedef struct memory_policy {
    int mode; /* MPOL_* of the kernel: 0 default, 2 bind */
    uint64_t nodes[MEMORY_NODES_MAX / 64];
} memory_policy;

/* All functions: 0 or -errno (-EINVAL: no such node; -EPERM, -ENOSYS: a seccomp profile or kernel without it). */

/* New memory of this thread, and of the threads it starts later, comes from `node` alone (MPOL_BIND). */
int memory_bind_thread(uint32_t node);
/* The same for a memfd, whoever touches a page first: the policy belongs to the object, not to a mapping. */
int memory_bind_memfd(int fd, size_t bytes, uint32_t node);
int memory_policy_of_thread(memory_policy *policy);
int memory_policy_of_memfd(int fd, memory_policy *policy); /* of its first page, which it does not touch */
#endif
