/* See index_pages.h. */
#include "log/index_pages.h"

#include <stdlib.h>

#define BUCKET_BITS_MIN 6u
#define BUCKET_BITS_MAX 20u

static uint64_t size_of(uint32_t count) { return sizeof(index_page) + (uint64_t)count * sizeof(index_entry); }

static index_page **bucket_of(const index_pages *c, uint64_t segment, uint64_t number) {
    uint64_t mixed = (segment * UINT64_C(0x9E3779B97F4A7C15) ^ number) * UINT64_C(0xD6E8FEB86659FD93);
    return &c->buckets[mixed >> (64 - c->bucket_bits)];
}

static void take_out(index_pages *c, index_page *page) {
    *(page->newer != NULL ? &page->newer->older : &c->newest) = page->older;
    *(page->older != NULL ? &page->older->newer : &c->oldest) = page->newer;
    page->newer = page->older = NULL;
}

static void put_first(index_pages *c, index_page *page) {
    page->older = c->newest;
    *(page->older != NULL ? &page->older->newer : &c->oldest) = page;
    c->newest = page;
}

static void drop(index_pages *c, index_page *page) {
    index_page **link = bucket_of(c, page->segment, page->number);
    while (*link != page) link = &(*link)->next;
    *link = page->next;
    take_out(c, page);
    c->bytes -= size_of(page->count);
    free(page);
}

void index_pages_close(index_pages *c) {
    while (c->oldest != NULL) drop(c, c->oldest);
    free(c->buckets);
    c->buckets = NULL;
}

const index_page *index_pages_find(index_pages *c, uint64_t segment, uint64_t number) {
    index_page *page = c->buckets != NULL ? *bucket_of(c, segment, number) : NULL;
    while (page != NULL && (page->segment != segment || page->number != number)) page = page->next;
    if (page == NULL) return NULL;
    take_out(c, page);
    put_first(c, page);
    c->hits++;
    return page;
}

index_page *index_pages_make(uint64_t segment, uint64_t number, uint32_t count) {
    index_page *page = malloc(size_of(count));
    if (page != NULL) *page = (index_page){.segment = segment, .number = number, .count = count};
    return page;
}

/* One bucket for each page that there may be. */
static bool make_buckets(index_pages *c) {
    uint64_t pages = c->bytes_max / size_of(INDEX_PAGE_ENTRIES);
    uint32_t bits = BUCKET_BITS_MIN;
    while (bits < BUCKET_BITS_MAX && (UINT64_C(1) << bits) < pages) bits++;
    c->bucket_bits = bits;
    c->buckets = calloc(UINT64_C(1) << bits, sizeof(index_page *));
    return c->buckets != NULL;
}

void index_pages_keep(index_pages *c, index_page *page) {
    if (c->buckets == NULL && !make_buckets(c)) {
        free(page);
        return;
    }
    index_page **bucket = bucket_of(c, page->segment, page->number);
    page->next = *bucket;
    *bucket = page;
    put_first(c, page);
    c->bytes += size_of(page->count);
    while (c->bytes > c->bytes_max) drop(c, c->oldest);
}
