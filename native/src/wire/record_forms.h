/* Records in the forms that earlier client generations write and read (docs/protocol/legacy.md#messages), from and to
 * the stored form (log/record.h). Pure functions over memory; nothing is allocated. A form is called by the bytes of
 * its record without payload and user headers. */
#ifndef SHARDD_RECORD_FORMS_H
#define SHARDD_RECORD_FORMS_H
#include <stddef.h>
#include <stdint.h>

/* As polls answer them. 56: the stored header without its last word; the others carry the user headers before the
 * payload, and 36 has none. */
typedef enum record_form {
    RECORD_FORM_36 = 36,
    RECORD_FORM_40 = 40,
    RECORD_FORM_45 = 45,
    RECORD_FORM_56 = 56
} record_form;

/* Whole stored records become records of `form`, in place: they never grow. The new length. User headers lose the kind
 * of their keys; entries whose key is no text, and blocks that are none, are left out. */
size_t records_to_form(uint8_t *records, size_t length, record_form form);

/* As sends bring them. 20: id, length, payload. 24: id, length of user headers, these, length, payload. 56: `count`
 * index entries, then headers with payload and user headers behind each. */
typedef enum send_form { SEND_FORM_20 = 20, SEND_FORM_24 = 24, SEND_FORM_56 = 56 } send_form;

typedef struct sent_records {
    uint32_t count;
    size_t batch_length; /* index entries, then stored records: what batch_check() takes */
} sent_records;

/* How large the batch is that `data` makes. 0, or the status that refuses it. */
uint32_t sent_records_measure(const uint8_t *data, size_t length, send_form form, uint32_t count, sent_records *out);
/* Writes it; `data` was measured. */
void sent_records_write(const uint8_t *data, size_t length, send_form form, const sent_records *what, uint8_t *out);

/* Index entries and records of SEND_FORM_56 without user headers become stored records at the end of the same memory:
 * where they begin. NULL: `status` refuses them, or is 0 when one has user headers. */
uint8_t *sent_records_widen(uint8_t *data, size_t length, uint32_t count, uint32_t *status);
#endif
