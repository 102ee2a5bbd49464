/* See websocket_upgrade.h. */
#include "net/websocket_upgrade.h"

#include "base/sha1.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static upgrade_result refuse(upgrade *u, uint32_t status) {
    u->status = status;
    return UPGRADE_REFUSED;
}

static bool is_token(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* "GET <target> HTTP/1.1": one space each, a target of visible characters without a fragment. */
static uint32_t check_request_line(const char *line, uint32_t length) {
    static const char method[] = "GET ", version[] = " HTTP/1.1";
    uint32_t before = sizeof method - 1, behind = sizeof version - 1;
    if (length < before || memcmp(line, method, before) != 0) return 405;
    if (length < before + behind + 1 || memcmp(line + length - behind, version, behind) != 0) return 400;
    const char *target = line + before;
    uint32_t size = length - before - behind;
    for (uint32_t i = 0; i < size; i++)
        if (target[i] <= ' ' || target[i] >= 127 || target[i] == '#') return 400;
    bool absolute = size > 7 && (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0);
    return target[0] == '/' || absolute ? 0 : 400;
}

/* One of a list with commas. */
static bool has_word(const char *value, uint32_t length, const char *word) {
    uint32_t size = (uint32_t)strlen(word);
    for (uint32_t at = 0; at < length;) {
        uint32_t end = at;
        while (end < length && value[end] != ',') end++;
        uint32_t from = at, to = end;
        while (from < to && (value[from] == ' ' || value[from] == '\t')) from++;
        while (to > from && (value[to - 1] == ' ' || value[to - 1] == '\t')) to--;
        if (to - from == size && strncasecmp(value + from, word, size) == 0) return true;
        at = end + 1;
    }
    return false;
}

static bool is_listed(const char *origins, const char *value, uint32_t length) {
    for (const char *at = origins; *at != '\0';) {
        const char *end = strchr(at, '\n');
        size_t size = end != NULL ? (size_t)(end - at) : strlen(at);
        if (size == 1 && *at == '*') return true;
        if (size == length && strncasecmp(at, value, size) == 0) return true;
        at += size + (end != NULL);
    }
    return false;
}

/* 16 bytes in base64: 22 digits, the last of which has four bits that are 0, and two fillers. */
static bool is_key(const char *value, uint32_t length) {
    if (length != UPGRADE_KEY_BYTES || value[22] != '=' || value[23] != '=') return false;
    for (uint32_t i = 0; i < 22; i++) {
        char c = value[i];
        bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '/';
        if (!digit) return false;
    }
    return strchr("AQgw", value[21]) != NULL;
}

static bool is_named(const char *line, uint32_t name, const char *wanted) {
    return name == strlen(wanted) && strncasecmp(line, wanted, name) == 0;
}

/* True: it is the first one of its name. */
static bool once(bool *seen) {
    bool first = !*seen;
    *seen = true;
    return first;
}

static uint32_t take_header(upgrade *u, const char *origins, const char *line, uint32_t name, const char *value,
                            uint32_t length) {
    if (is_named(line, name, "Host")) return once(&u->host) && length > 0 ? 0 : 400;
    if (is_named(line, name, "Transfer-Encoding")) return 400;
    if (is_named(line, name, "Content-Length")) return length == 1 && value[0] == '0' ? 0 : 400; /* it has no body */
    if (is_named(line, name, "Upgrade")) u->upgrade |= has_word(value, length, "websocket");
    else if (is_named(line, name, "Connection")) u->connection |= has_word(value, length, "upgrade");
    else if (is_named(line, name, "Sec-WebSocket-Version")) {
        if (!once(&u->version)) return 400;
        u->wrong_version = length != 2 || memcmp(value, "13", 2) != 0;
    } else if (is_named(line, name, "Sec-WebSocket-Key")) {
        if (!once(&u->has_key) || !is_key(value, length)) return 400;
        memcpy(u->key, value, UPGRADE_KEY_BYTES);
    } else if (is_named(line, name, "Origin")) {
        if (!once(&u->origin)) return 400;
        u->wrong_origin = !is_listed(origins, value, length);
    }
    return 0;
}

static uint32_t check_header(upgrade *u, const char *origins) {
    const char *line = u->line;
    uint32_t name = 0, from, to = u->length;
    if (++u->headers > UPGRADE_HEADERS_MAX) return 431;
    while (name < u->length && is_token((uint8_t)line[name])) name++;
    if (name == 0 || name == u->length || line[name] != ':') return u->too_long && name == u->length ? 431 : 400;
    for (from = name + 1; from < to; from++)
        if (((uint8_t)line[from] < ' ' && line[from] != '\t') || line[from] == 127) return 400;
    from = name + 1;
    while (from < to && (line[from] == ' ' || line[from] == '\t')) from++;
    while (to > from && (line[to - 1] == ' ' || line[to - 1] == '\t')) to--;
    if (!u->too_long) return take_header(u, origins, line, name, line + from, to - from);
    /* The rest of it was not kept: nobody asks what a cookie says, but what matters here is never so long. */
    static const char *const short_ones[] = {"Host",       "Transfer-Encoding",     "Content-Length",    "Upgrade",
                                             "Connection", "Sec-WebSocket-Version", "Sec-WebSocket-Key", "Origin"};
    for (size_t i = 0; i < sizeof short_ones / sizeof short_ones[0]; i++)
        if (is_named(line, name, short_ones[i])) return 431;
    return 0;
}

static upgrade_result end_request(upgrade *u) {
    if (!u->host) return refuse(u, 400);
    if (!u->upgrade || !u->connection) return refuse(u, 426);
    if (!u->version || u->wrong_version) return refuse(u, 426);
    if (!u->has_key) return refuse(u, 400);
    return u->wrong_origin ? refuse(u, 403) : UPGRADE_DONE;
}

static upgrade_result end_line(upgrade *u, const char *origins) {
    uint32_t status;
    if (!u->first_done) {
        status = u->too_long ? 414 : check_request_line(u->line, u->length);
        u->first_done = true;
    } else {
        if (u->length == 0) return end_request(u);
        status = check_header(u, origins);
    }
    u->length = 0;
    u->too_long = false;
    return status != 0 ? refuse(u, status) : UPGRADE_MORE;
}

upgrade_result upgrade_feed(upgrade *u, const char *origins, const uint8_t *bytes, size_t length, size_t *used) {
    for (size_t i = 0; i < length; i++) {
        uint8_t c = bytes[i];
        *used = i + 1;
        if (++u->total > UPGRADE_BYTES_MAX) return refuse(u, 431);
        if (u->ended_by_cr) {
            u->ended_by_cr = false;
            upgrade_result result = c == '\n' ? end_line(u, origins) : refuse(u, 400);
            if (result != UPGRADE_MORE) return result;
        } else if (c == '\r') {
            u->ended_by_cr = true;
        } else if (c == '\n' || c == 0) {
            return refuse(u, 400);
        } else if (u->length < UPGRADE_LINE_BYTES) {
            u->line[u->length++] = (char)c;
        } else {
            u->too_long = true;
        }
    }
    *used = length;
    return UPGRADE_MORE;
}

size_t upgrade_refusal(uint32_t status, char out[UPGRADE_ANSWER_MAX]) {
    const char *why = status == 403   ? "Forbidden"
                      : status == 405 ? "Method Not Allowed\r\nAllow: GET"
                      : status == 414 ? "URI Too Long"
                      : status == 426 ? "Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
                      : status == 431 ? "Request Header Fields Too Large"
                      : status == 503 ? "Service Unavailable"
                                      : "Bad Request";
    const char *connection = status == 426 ? "close, Upgrade" : "close";
    return (size_t)snprintf(out, UPGRADE_ANSWER_MAX, "HTTP/1.1 %u %s\r\nConnection: %s\r\nContent-Length: 0\r\n\r\n",
                            status, why, connection);
}

size_t upgrade_answer(const upgrade *u, char out[UPGRADE_ANSWER_MAX]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char fixed[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    if (u->status != 0) return upgrade_refusal(u->status, out);
    uint8_t text[UPGRADE_KEY_BYTES + sizeof fixed - 1], digest[SHA1_BYTES + 1] = {0};
    char accept[29];
    memcpy(text, u->key, UPGRADE_KEY_BYTES);
    memcpy(text + UPGRADE_KEY_BYTES, fixed, sizeof fixed - 1);
    sha1(text, sizeof text, digest);
    for (size_t i = 0; i < 7; i++) {
        uint32_t word = (uint32_t)digest[3 * i] << 16 | (uint32_t)digest[3 * i + 1] << 8 | digest[3 * i + 2];
        for (size_t j = 0; j < 4; j++) accept[4 * i + j] = digits[word >> (18 - 6 * j) & 63];
    }
    accept[27] = '='; /* 20 bytes: the last group has one filler */
    accept[28] = '\0';
    return (size_t)snprintf(out, UPGRADE_ANSWER_MAX,
                            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            "Sec-WebSocket-Accept: %s\r\n\r\n",
                            accept);
}
