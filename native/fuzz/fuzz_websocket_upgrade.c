/* libFuzzer: any bytes as the request of a WebSocket client. Cut in two places it is judged as in one piece, its bounds
 * hold, and there is an answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/websocket_upgrade.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static upgrade_result feed(upgrade *u, const uint8_t *data, size_t size, size_t cut, size_t *all) {
    size_t used;
    *u = (upgrade){0};
    upgrade_result result = upgrade_feed(u, "https://a\n", data, cut, all);
    if (*all > cut) abort();
    if (result != UPGRADE_MORE) return result;
    result = upgrade_feed(u, "https://a\n", data + cut, size - cut, &used);
    if (used > size - cut) abort();
    *all += used;
    return result;
}

static void judge(const uint8_t *data, size_t size, size_t at) {
    upgrade whole, cut;
    size_t used, again;
    char answer[UPGRADE_ANSWER_MAX];
    upgrade_result result = feed(&whole, data, size, size, &used);
    if (feed(&cut, data, size, at, &again) != result || used != again || cut.status != whole.status) abort();
    if (used > UPGRADE_BYTES_MAX + 1 || (result == UPGRADE_REFUSED) != (whole.status != 0)) abort();
    if (result != UPGRADE_MORE && upgrade_answer(&whole, answer) >= sizeof answer) abort();
}

/* As they are, and with every second byte another line of a good request: what is asked of the lines is reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const lines[] = {"Host: a\r\n",
                                        "Upgrade: websocket\r\n",
                                        "Connection: x, Upgrade\r\n",
                                        "Sec-WebSocket-Version: 13\r\n",
                                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
                                        "Origin: https://a\r\n",
                                        "Content-Length: 0\r\n",
                                        "Cookie: ",
                                        "\r\n",
                                        "Sec-WebSocket-Key: ",
                                        "Origin: ",
                                        "Upgrade: ",
                                        "X\t: ",
                                        "Sec-WebSocket-Version: "};
    size_t cut = size > 0 ? data[0] : 0, length = 0;
    judge(data, size, cut * size / 256);
    char *text = malloc(16 + size * 48 + 1);
    if (text == NULL) abort();
    length = (size_t)sprintf(text, "GET / HTTP/1.1\r\n");
    for (size_t i = 0; i < size; i++) {
        const char *line = lines[data[i] % (sizeof lines / sizeof lines[0])];
        if (i % 2 == 0) length += (size_t)sprintf(text + length, "%s", line);
        else if (data[i] < 200) text[length++] = (char)data[i];
    }
    judge((const uint8_t *)text, length, cut * length / 256);
    free(text);
    return 0;
}
