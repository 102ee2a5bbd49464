/* The answer of poll_position (docs/extensions.md#poll-position): that of a classic poll, and to which history of the
 * partition its offsets belong. */
#ifndef SHARDD_POSITIONS_H
#define SHARDD_POSITIONS_H
#include "wire/dialect.h"

#define POSITION_HEAD_SIZE 48u

/* Writes heads of polls and nothing else; no connection speaks it. */
extern const dialect dialect_positions;
#endif
