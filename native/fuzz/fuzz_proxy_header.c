/* libFuzzer: any bytes as the header of a proxy. Whatever comes in pieces is judged as in one piece, nothing behind the
 * announced bytes is looked at (ASan), and no bound is passed. */
#include <stdlib.h>
#include <string.h>

#include "wire/proxy_header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static proxy_result judge(const uint8_t *data, size_t size, proxy_header *out) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) abort();
    if (size > 0) memcpy(copy, data, size);
    proxy_result result = proxy_header_read(copy, size, out);
    free(copy);
    return result;
}

/* As a connection reads it: so much as was asked for, again and again. */
static proxy_result judge_in_pieces(const uint8_t *data, size_t size, proxy_header *out) {
    proxy_result result = judge(data, 0, out);
    for (size_t have = 0; result == PROXY_MORE;) {
        if (out->read_bytes <= have || out->read_bytes > PROXY_READ_BYTES_MAX) abort();
        if (out->read_bytes > size) {
            result = judge(data, size, out); /* and no more comes */
            break;
        }
        have = out->read_bytes;
        result = judge(data, have, out);
    }
    return result;
}

static void check(const uint8_t *data, size_t size) {
    proxy_header whole, pieces;
    proxy_result result = judge(data, size, &whole);
    if (judge_in_pieces(data, size, &pieces) != result) abort();
    if (result != PROXY_WHOLE) return;
    if (memcmp(&whole, &pieces, sizeof whole) != 0) abort();
    if (whole.read_bytes > size || whole.length < whole.read_bytes || whole.length > PROXY_HEADER_BYTES_MAX) abort();
    if (whole.source_bytes != 0 && whole.source_bytes != 4 && whole.source_bytes != 16) abort();
    if ((whole.source_bytes == 0) != (whole.transport == PROXY_UNSPECIFIED)) abort();
}

/* As they are, and behind a right signature: what comes after it is reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    uint8_t *behind = malloc(size + PROXY_SIGNATURE_BYTES);
    if (behind == NULL) abort();
    memcpy(behind, "\r\n\r\n\0\r\nQUIT\n", PROXY_SIGNATURE_BYTES);
    if (size > 0) memcpy(behind + PROXY_SIGNATURE_BYTES, data, size);
    check(behind, size + PROXY_SIGNATURE_BYTES);
    free(behind);
    return 0;
}
