#include "base/memory_policy.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel takes the number of bits plus one. */
#define MASK_BITS (MEMORY_NODES_MAX + 1ul)

static int make_mask(uint32_t node, memory_policy *policy) {
    if (node >= MEMORY_NODES_MAX) return -EINVAL;
    memset(policy, 0, sizeof *policy);
    policy->mode = MPOL_BIND;
    policy->nodes[node / 64] = (uint64_t)1 << node % 64;
    return 0;
}

int memory_bind_thread(uint32_t node) {
    memory_policy wanted;
    int result = make_mask(node, &wanted);
    if (result == 0 && syscall(SYS_set_mempolicy, wanted.mode, wanted.nodes, MASK_BITS) != 0) result = -errno;
    return result;
}

int memory_bind_memfd(int fd, size_t bytes, uint32_t node) {
    memory_policy wanted;
    int result = make_mask(node, &wanted);
    if (result != 0) return result;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) return -errno;
    if (syscall(SYS_mbind, memory, bytes, wanted.mode, wanted.nodes, MASK_BITS, 0) != 0) result = -errno;
    munmap(memory, bytes);
    return result;
}

static int read_policy(memory_policy *policy, void *address, unsigned long flags) {
    memset(policy, 0, sizeof *policy);
    unsigned long bits = MEMORY_NODES_MAX;
    return syscall(SYS_get_mempolicy, &policy->mode, policy->nodes, bits, address, flags) == 0 ? 0 : -errno;
}

int memory_policy_of_thread(memory_policy *policy) { return read_policy(policy, NULL, 0); }

int memory_policy_of_memfd(int fd, memory_policy *policy) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) return -errno;
    int result = read_policy(policy, memory, MPOL_F_ADDR);
    munmap(memory, page);
    return result;
}
