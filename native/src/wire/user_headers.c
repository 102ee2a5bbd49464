/* See user_headers.h. */
#include "wire/user_headers.h"

#include "base/bytes.h"

#include <string.h>

enum { KEY_IS_TEXT = 2, KIND_MAX = 15, TEXT_MAX = 255 };

/* u32 length, 1 to 255, and that many bytes: their size in all; 0: there are not. */
static size_t text_size(const uint8_t *at, size_t left) {
    if (left < 4) return 0;
    uint32_t length = load_u32(at);
    return length >= 1 && length <= TEXT_MAX && length <= left - 4 ? 4 + (size_t)length : 0;
}

/* Key, kind of the value, value: size of the entry without the kind of its key; 0: it is none. */
static size_t entry_size(const uint8_t *at, size_t left) {
    size_t key = text_size(at, left);
    if (key == 0 || left - key < 1 || at[key] < 1 || at[key] > KIND_MAX) return 0;
    size_t value = text_size(at + key + 1, left - key - 1);
    return value == 0 ? 0 : key + 1 + value;
}

size_t user_headers_strip(const uint8_t *block, size_t length, uint8_t *out) {
    size_t written = 0;
    for (size_t at = 0; at < length;) {
        size_t size = block[at] >= 1 && block[at] <= KIND_MAX ? entry_size(block + at + 1, length - at - 1) : 0;
        if (size == 0) return 0;
        if (block[at] == KEY_IS_TEXT) {
            memcpy(out + written, block + at + 1, size);
            written += size;
        }
        at += 1 + size;
    }
    return written;
}

bool user_headers_measure(const uint8_t *block, size_t length, size_t *stored) {
    *stored = length;
    for (size_t at = 0; at < length; (*stored)++) {
        size_t size = entry_size(block + at, length - at);
        if (size == 0) return false;
        at += size;
    }
    return true;
}

void user_headers_extend(const uint8_t *block, size_t length, uint8_t *out) {
    for (size_t at = 0; at < length;) {
        size_t size = entry_size(block + at, length - at);
        *out++ = KEY_IS_TEXT;
        memcpy(out, block + at, size);
        out += size;
        at += size;
    }
}
