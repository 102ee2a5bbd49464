/* The two clocks. */
#ifndef SHARDD_CLOCK_H
#define SHARDD_CLOCK_H
#include <stdint.h>

int64_t clock_monotonic_us(void);
uint64_t clock_wall_us(void);
#endif
