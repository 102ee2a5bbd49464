/* Digests of whole logs. */
#include "log/digest.h"

#include "base/checksum.h"
#include "io/disk.h"
#include "log/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_SIZE ((size_t)1 << 18)

int digest_file(int fd, uint64_t length, uint8_t out[DIGEST_SIZE]) {
    XXH3_state_t state;
    XXH128_canonical_t canonical;
    uint8_t *window = malloc(WINDOW_SIZE);
    if (window == NULL) {
        errno = ENOMEM;
        return -1;
    }
    XXH3_128bits_reset(&state);
    int result = 0;
    for (uint64_t at = 0; at < length && result == 0;) {
        size_t part = length - at < WINDOW_SIZE ? (size_t)(length - at) : WINDOW_SIZE;
        result = file_read(&disk_system, fd, window, part, at);
        if (result == 0) checksum_update(&state, window, part);
        at += part;
    }
    free(window);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(out, canonical.digest, DIGEST_SIZE);
    return result;
}
