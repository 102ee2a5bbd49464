/* For callers that want values and no frames (engine/calls.c): a poll's answer begins with its summary as it lies in
 * memory, wherever it is read. Nobody connects with it, so there is nothing else to read or to write. */
#include "wire/dialect.h"

#include <string.h>

static void put_poll_head(uint8_t *at, const poll_summary *whole) { memcpy(at, whole, sizeof *whole); }

const dialect dialect_values = {.name = "values",
                                .number = DIALECT_VALUES,
                                .poll_head_bytes = sizeof(poll_summary),
                                .put_poll_head = put_poll_head};
