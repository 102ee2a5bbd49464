/* Before the first bytes of a connection have come nobody knows what it speaks. What it is told until then (there is no
 * place for it, it took too long) is told as classic clients understand it; all others see an end of the stream.
 *
 * A dialect that its first eight bytes tell has a row of `beginnings`, in the order in which they are asked. Classic is
 * what nothing else is: whatever is wrong with its first frame gets a classic status. Generations that share its frames
 * are told apart later, by what their requests say (conn_speak). */
#include "wire/dialect.h"

#include "wire/frame_limits.h"
#include "wire/iggy09.h"

typedef struct beginning {
    const dialect *dialect;
    bool (*begins)(const uint8_t *first);
} beginning;

static bool any(const uint8_t *first) {
    (void)first;
    return true;
}

static const beginning beginnings[] = {{&dialect_iggy09, iggy09_begins}, {&dialect_classic, any}};

static const dialect *choose(const uint8_t *first) {
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (beginnings[i].begins(first)) return beginnings[i].dialect;
    return &dialect_classic;
}

static bool read_head(const uint8_t *head, frame_head *out) {
    (void)head, (void)out;
    return false;
}

static size_t put_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    return dialect_classic.put_status(head, at, status);
}

static const dialect *choose_unnamed(const uint8_t *first) {
    const dialect *told = choose(first);
    return told == &dialect_classic ? dialect_legacy(DIALECT_UNNAMED) : told;
}

const dialect dialect_undecided_or_unnamed = {.name = "auto-unnamed",
                                              .head_bytes = DIALECT_FIRST_BYTES,
                                              .answer_bytes = DIALECT_ANSWER_SMALL,
                                              .send_bytes_max = FRAME_SEND_MAX,
                                              .one_at_a_time = true,
                                              .read_head = read_head,
                                              .put_status = put_status,
                                              .choose = choose_unnamed};

const dialect dialect_undecided = {.name = "auto",
                                   .head_bytes = DIALECT_FIRST_BYTES,
                                   .answer_bytes = DIALECT_ANSWER_SMALL,
                                   .send_bytes_max = FRAME_SEND_MAX,
                                   .one_at_a_time = true,
                                   .read_head = read_head,
                                   .put_status = put_status,
                                   .choose = choose};
