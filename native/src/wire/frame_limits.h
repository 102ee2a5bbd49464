/* How large the payload of a request may be: the table (docs/limits.md). Derived from the layouts of docs/protocol: a
 * command with a few identifiers and names needs less than 1 KiB, the rest is for surplus bytes, which the protocol
 * tolerates. A larger payload is taken in, dropped and answered with 3; above FRAME_CONTROL_MAX the connection ends. */
#ifndef SHARDD_FRAME_LIMITS_H
#define SHARDD_FRAME_LIMITS_H
#include <stdint.h>

#define FRAME_HEADER_SIZE 8u
#define FRAME_CONTROL_MAX 10485760u     /* what is drained at most (docs/protocol/framing.md#sizes) */
#define FRAME_SEND_MAX (96u << 20)      /* SEND_MESSAGES: >= 64 MB + headers; less when the pool is small */
#define FRAME_LEGACY_SEND_MAX 16777216u /* SEND_MESSAGES whose records Python has copied: their clients stop at 10 MB */
#define FRAME_SEND_ONCE_MAX 4194304u    /* SEND_ONCE: records of 2 MiB, an index entry for each, a head */
#define FRAME_SMALL_MAX 4096u           /* every command that is not named, LOGIN with its texts, too */
#define FRAME_PERMISSIONS_MAX 524288u   /* CREATE_USER, UPDATE_PERMISSIONS: 32,768 entries of at most 12 bytes */
#define FRAME_SETTINGS_MAX 65536u       /* SET_TOPIC_SETTINGS: 64 pairs of str8 */
#define FRAME_BOUNDS_MAX 1048576u       /* GET_PARTITION_BOUNDS: 1,000 topics by name, and 131,072 partitions */
#define FRAME_ANONYMOUS_MAX 4096u       /* kept of a frame before login; the rest is drained */

uint32_t frame_limit(uint32_t code);
#endif
