/* See identifier.h. */
#include "base/identifier.h"

#include <stdbool.h>

/* Bytes of the UTF-8 sequence at text[0] (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF); 0 = none. */
static size_t utf8_sequence(const uint8_t *text, size_t left) {
    uint8_t first = text[0];
    if (first < 0x80) return 1;
    size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0 || length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    uint8_t second = text[1];
    bool refused = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                   (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    return refused ? 0 : length;
}

uint32_t identifier_length(const uint8_t *data, size_t left) {
    if (left < 2 || left - 2 < data[1]) return 0;
    uint32_t length = data[1];
    if (data[0] == IDENTIFIER_NUMERIC) return length == 4 ? 6 : 0;
    if (data[0] != IDENTIFIER_STRING || length == 0) return 0;
    for (size_t i = 0; i < length;) {
        size_t step = utf8_sequence(data + 2 + i, length - i);
        if (step == 0) return 0;
        i += step;
    }
    return length + 2;
}
