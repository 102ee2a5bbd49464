/* The request that makes a connection one of WebSocket (RFC 6455, section 4.2.1): parsed as it comes, line by line, in
 * room that does not grow. */
#ifndef SHARDD_WEBSOCKET_UPGRADE_H
#define SHARDD_WEBSOCKET_UPGRADE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UPGRADE_LINE_BYTES 1024u /* of a line that matters */
#define UPGRADE_BYTES_MAX 16384u /* of the whole request */
#define UPGRADE_HEADERS_MAX 100u
#define UPGRADE_KEY_BYTES 24u /* 16 bytes in base64 */
#define UPGRADE_ANSWER_MAX 256u
#define UPGRADE_ORIGINS_BYTES 4096u

typedef enum upgrade_result { UPGRADE_MORE, UPGRADE_DONE, UPGRADE_REFUSED } upgrade_result;

typedef struct upgrade {
    char line[UPGRADE_LINE_BYTES];
    uint32_t length, total, headers; /* of the line; of all of it; lines after the first */
    bool first_done, ended_by_cr, too_long;
    bool host, upgrade, connection, version, origin;
    bool wrong_version, wrong_origin;
    char key[UPGRADE_KEY_BYTES];
    bool has_key;
    uint32_t status; /* of HTTP, when it is refused */
} upgrade;

/* Takes bytes up to the end of the request; how many is in `used`. `origins`: those that browsers may come from, each
 * one with a line feed behind it; "*" with it: all. */
upgrade_result upgrade_feed(upgrade *u, const char *origins, const uint8_t *bytes, size_t length, size_t *used);
/* What the client gets: 101 when it is done, else why not. */
size_t upgrade_answer(const upgrade *u, char out[UPGRADE_ANSWER_MAX]);
size_t upgrade_refusal(uint32_t status, char out[UPGRADE_ANSWER_MAX]);
#endif
