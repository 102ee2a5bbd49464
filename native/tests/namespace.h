/* The namespace of a partition, which only Python makes (shardd/protocol/namespaces.py): the core takes it as it is. */
#ifndef SHARDD_TEST_NAMESPACE_H
#define SHARDD_TEST_NAMESPACE_H
#include <stdint.h>

static inline uint64_t namespace_of(uint32_t stream, uint32_t topic, uint32_t partition) {
    return (uint64_t)stream << 32 | (uint64_t)topic << 20 | partition;
}
#endif
