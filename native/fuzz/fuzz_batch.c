/* libFuzzer: any bytes as a SEND_MESSAGES payload. What validation accepts must come out of assignment as a valid,
 * dense log. */
#include <stdlib.h>
#include <string.h>

#include "log/batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *payload = malloc(size > 0 ? size : 1);
    memcpy(payload, data, size);
    record_scan scan;
    record_scan_buffer(payload, size, 0, 0, 0, 0, NULL, 0, &scan);
    if (scan.valid_bytes > size) abort();
    send_request request;
    if (send_request_parse(payload, size, &request) == 0) {
        index_entry *entries = malloc(request.count * sizeof *entries);
        id_source ids;
        id_source_seed_fixed(&ids, size);
        batch_assign(request.messages, request.messages_length, request.count, 1000, 5, 0, 0, &ids, entries);
        record_fault fault = record_scan_buffer(request.messages, request.messages_length, 1000, 5, 1000, 0, NULL, 0,
                                                &scan);
        if (fault != RECORD_OK || scan.count != request.count || scan.valid_bytes != request.messages_length ||
            entries[request.count - 1].end_position != request.messages_length)
            abort();
        free(entries);
    }
    free(payload);
    return 0;
}
