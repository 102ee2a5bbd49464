/* libFuzzer: any bytes as what earlier clients send. What is accepted must be a batch that the core accepts, and its
 * records must come out in every form that polls answer, never larger. The first byte chooses, the next one counts. */
#include <stdlib.h>
#include <string.h>

#include "log/batch.h"
#include "wire/legacy_request.h"
#include "wire/record_forms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void answer(const uint8_t *records, size_t length) {
    static const record_form forms[] = {RECORD_FORM_36, RECORD_FORM_40, RECORD_FORM_45, RECORD_FORM_56};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        uint8_t *copy = malloc(length);
        memcpy(copy, records, length);
        if (records_to_form(copy, length, forms[i]) > length) abort();
        free(copy);
    }
}

static void parse(const uint8_t *data, size_t size) {
    request out;
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, data, size);
    legacy_parse_poll(copy, size, &out);
    legacy_parse_store(copy, size, &out);
    out.kind = REQUEST_SEND;
    uint32_t status = legacy_parse_send(copy, size, 1, false, &out);
    if (status == 0 && out.kind == REQUEST_SEND) {
        uint8_t *first = out.send.messages;
        uint64_t length = out.send.messages_length;
        answer(first, length);
        if (legacy_parse_send(copy, size, 1, true, &out) != 0 || out.send.messages != first ||
            out.send.messages_length != length)
            abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const send_form forms[] = {SEND_FORM_20, SEND_FORM_24, SEND_FORM_56};
    sent_records found;
    if (size < 2) return 0;
    send_form form = forms[data[0] % 3];
    uint32_t count = data[1];
    uint8_t *sent = malloc(size - 2 > 0 ? size - 2 : 1);
    memcpy(sent, data + 2, size - 2);
    parse(sent, size - 2);
    if (sent_records_measure(sent, size - 2, form, count, &found) == 0) {
        uint8_t *batch = malloc(found.batch_length);
        sent_records_write(sent, size - 2, form, &found, batch);
        uint32_t status = batch_check(batch, found.batch_length, found.count);
        size_t index = (size_t)found.count * INDEX_ENTRY_SIZE;
        if (status != 0 && form != SEND_FORM_56) abort();
        if (status == 0) answer(batch + index, found.batch_length - index);
        free(batch);
    }
    free(sent);
    return 0;
}
