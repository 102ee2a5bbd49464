/* What is read of a PROXY protocol header, and which networks may send one. */
#include "check.h"
#include "proxy_headers.h"

#include <netinet/in.h>

#include "net/trusted.h"

static uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
static proxy_header h;

static void test_an_address_of_ipv4_is_told_with_its_port(void) {
    size_t length = put_header(bytes, PROXY, TCP4, "192.0.2.7", 50000, 0);
    CHECK_EQUAL(length, 28);
    CHECK_EQUAL(proxy_header_read(bytes, length, &h), PROXY_WHOLE);
    CHECK_EQUAL(h.source_bytes, 4);
    CHECK_EQUAL(memcmp(h.source, "\300\0\2\7", 4), 0);
    CHECK_EQUAL(h.source_port, 50000);
    CHECK_EQUAL(h.transport, PROXY_STREAM);
    CHECK_EQUAL(h.length, 28);
}

static void test_an_address_of_ipv6_is_told_with_its_port(void) {
    uint8_t wanted[16];
    size_t length = put_header(bytes, PROXY, TCP6, "2001:db8::7", 443, 0);
    inet_pton(AF_INET6, "2001:db8::7", wanted);
    CHECK_EQUAL(length, 52);
    CHECK_EQUAL(proxy_header_read(bytes, length, &h), PROXY_WHOLE);
    CHECK_EQUAL(h.source_bytes, 16);
    CHECK_EQUAL(memcmp(h.source, wanted, 16), 0);
    CHECK_EQUAL(h.source_port, 443);
}

static void test_a_header_in_pieces_asks_for_the_rest_and_never_for_more(void) {
    size_t length = put_header(bytes, PROXY, TCP6, "2001:db8::7", 443, 40);
    for (size_t have = 0; have < 52; have++) {
        CHECK_EQUAL(proxy_header_read(bytes, have, &h), PROXY_MORE);
        CHECK_EQUAL(h.read_bytes, have < 16 ? 16 : 52);
    }
    CHECK_EQUAL(proxy_header_read(bytes, 52, &h), PROXY_WHOLE);
    CHECK_EQUAL(h.length, length); /* what is behind is skipped */
}

static void test_headers_without_an_address_leave_that_of_the_connection(void) {
    const uint8_t kinds[][2] = {{LOCAL, NOTHING}, {LOCAL, TCP4},        {LOCAL, TCP6}, {PROXY, NOTHING},
                                {PROXY, 0x10},    {PROXY, UNIX_STREAM}, {PROXY, 0x01}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t length = put_header(bytes, kinds[i][0], kinds[i][1], "192.0.2.7", 1, 3);
        CHECK_EQUAL(proxy_header_read(bytes, length, &h), PROXY_WHOLE);
        CHECK_EQUAL(h.source_bytes, 0);
        CHECK_EQUAL(h.transport, PROXY_UNSPECIFIED);
        CHECK_EQUAL(h.length, length);
    }
}

static void test_a_datagram_says_that_it_is_one(void) {
    size_t length = put_header(bytes, PROXY, UDP4, "192.0.2.7", 1, 0);
    CHECK_EQUAL(proxy_header_read(bytes, length, &h), PROXY_WHOLE);
    CHECK_EQUAL(h.transport, PROXY_DATAGRAM);
}

static void test_each_wrong_byte_is_found_as_soon_as_it_is_there(void) {
    size_t length = put_header(bytes, PROXY, TCP4, "192.0.2.7", 1, 0);
    for (size_t at = 0; at < PROXY_SIGNATURE_BYTES + 1; at++) {
        bytes[at] ^= 0x40;
        CHECK_EQUAL(proxy_header_read(bytes, at + 1, &h), PROXY_WRONG);
        bytes[at] ^= 0x40;
    }
    CHECK_EQUAL(proxy_header_read(bytes, length, &h), PROXY_WHOLE);
    CHECK_EQUAL(proxy_header_read((const uint8_t *)"PROXY TCP4 ", 11, &h), PROXY_WRONG); /* version 1 */
}

static void test_malformed_headers_are_wrong(void) {
    const uint8_t kinds[][2] = {{0x22, TCP4},  {0x2f, TCP4},  {0x11, TCP4},  {0x31, TCP4},
                                {PROXY, 0x41}, {PROXY, 0xf1}, {PROXY, 0x13}, {LOCAL, 0xff}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        put_header(bytes, PROXY, TCP4, "192.0.2.7", 1, 100);
        bytes[12] = kinds[i][0];
        bytes[13] = kinds[i][1];
        CHECK_EQUAL(proxy_header_read(bytes, 128, &h), PROXY_WRONG);
    }
    for (uint8_t short_by = 1; short_by <= 12; short_by++) { /* too short for its addresses */
        put_header(bytes, PROXY, TCP4, "192.0.2.7", 1, 0);
        bytes[15] = (uint8_t)(12 - short_by);
        CHECK_EQUAL(proxy_header_read(bytes, 128, &h), PROXY_WRONG);
    }
    for (size_t rest = 996; rest <= 997; rest++) {
        size_t length = put_header(bytes, PROXY, TCP4, "192.0.2.7", 1, rest);
        CHECK_EQUAL(proxy_header_read(bytes, length, &h), length > PROXY_HEADER_BYTES_MAX ? PROXY_WRONG : PROXY_WHOLE);
    }
    memset(bytes + 14, 255, 2);
    CHECK_EQUAL(proxy_header_read(bytes, 16, &h), PROXY_WRONG);
}

static bool is_trusted(const trusted_networks *t, const char *host) {
    struct sockaddr_storage peer = {0};
    struct sockaddr_in *v4 = (void *)&peer;
    struct sockaddr_in6 *v6 = (void *)&peer;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) peer.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) peer.ss_family = AF_INET6;
    else peer.ss_family = AF_UNIX;
    return trusted_has(t, &peer);
}

static void test_networks_have_their_hosts_and_no_others(void) {
    trusted_networks t;
    CHECK(trusted_parse(&t, "10.1.0.0/16\n192.0.2.129/25\n203.0.113.9/32\n2001:db8:1::/47\n::1/128\n"));
    CHECK_EQUAL(t.count, 5);
    const char *inside[] = {"10.1.255.255",    "192.0.2.128",     "192.0.2.255", "203.0.113.9",
                            "::ffff:10.1.2.3", "2001:db8:1:ff::", "::1",         "2001:db8::5"};
    const char *outside[] = {"10.2.0.0",     "10.0.255.255",    "192.0.2.127", "203.0.113.8",
                             "2001:db8:2::", "::ffff:10.2.0.0", "::2",         "unix"};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) CHECK(is_trusted(&t, inside[i]));
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) CHECK(!is_trusted(&t, outside[i]));
    CHECK(trusted_parse(&t, ""));
    CHECK(!is_trusted(&t, "127.0.0.1") && !is_trusted(&t, "::"));
    CHECK(trusted_parse(&t, "::/1\n")); /* and no address of IPv4 */
    CHECK(is_trusted(&t, "::1") && !is_trusted(&t, "::ffff:10.1.2.3") && !is_trusted(&t, "10.1.2.3"));
}

static void test_what_is_no_network_is_refused(void) {
    trusted_networks t;
    const char *wrong[] = {
        "10.0.0.0/8",    "10.0.0.0\n",
        "10.0.0.0/\n",   "10.0.0.0/33\n",
        "10.0.0.0/8x\n", "\n",
        "::/129\n",      "host/8\n",
        "10.0.0.0/-1\n", "/8\n",
        "10.0.0/8\n",    "0000000000000000000000000000000000000000000000000000000000000000000000000000/8\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) CHECK(!trusted_parse(&t, wrong[i]));
    char many[12 * (TRUSTED_NETWORKS_MAX + 1) + 1] = "";
    for (uint32_t i = 0; i < TRUSTED_NETWORKS_MAX; i++) strcat(many, "10.0.0.0/8\n");
    CHECK(trusted_parse(&t, many));
    strcat(many, "10.0.0.0/8\n");
    CHECK(!trusted_parse(&t, many));
}

int main(void) {
    RUN(test_an_address_of_ipv4_is_told_with_its_port);
    RUN(test_an_address_of_ipv6_is_told_with_its_port);
    RUN(test_a_header_in_pieces_asks_for_the_rest_and_never_for_more);
    RUN(test_headers_without_an_address_leave_that_of_the_connection);
    RUN(test_a_datagram_says_that_it_is_one);
    RUN(test_each_wrong_byte_is_found_as_soon_as_it_is_there);
    RUN(test_malformed_headers_are_wrong);
    RUN(test_networks_have_their_hosts_and_no_others);
    RUN(test_what_is_no_network_is_refused);
    return check_report();
}
