/* shardd.spark._decode: decoder and encoder alone, without the engine, so that Spark's executors need neither liburing
 * nor a server. Contract: shardd/spark/_decode.pyi. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#include "encode_call.h"
#include "log/decode.h"
#include "log/record.h"

/* Letters of the wanted columns, in the order of the answer. */
typedef enum column {
    COLUMN_CHECKSUM = 'c',
    COLUMN_OFFSET = 'o',
    COLUMN_TIMESTAMP = 't',
    COLUMN_ORIGIN = 'g',
    COLUMN_ID = 'i',
    COLUMN_VALUE = 'v',
    COLUMN_HEADERS_RAW = 'r',
    COLUMN_HEADERS = 'h',
    COLUMN_KEY = 'k',
    COLUMN_CHECKSUM_OK = 'b',
    COLUMN_POSITION = 'p',
} column;

#define BUFFERS_MAX 6

typedef struct column_buffers {
    PyObject *parts[BUFFERS_MAX];
    int count;
} column_buffers;

/* A bytes object of `size` bytes for C to fill; its address stays valid without the GIL. */
static void *add_buffer(column_buffers *buffers, uint64_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) return NULL;
    buffers->parts[buffers->count++] = bytes;
    return PyBytes_AsString(bytes);
}

typedef struct work {
    const uint8_t *data;
    uint64_t position; /* of `data` in what the caller gave */
    uint64_t *positions;
    decode_request request;
    decode_batch batch;
} work;

static bool fill_fixed(const work *w, char letter, column_buffers *buffers) {
    uint32_t field = 40; /* origin timestamp */
    if (letter == COLUMN_CHECKSUM) field = 0;
    else if (letter == COLUMN_OFFSET) field = 24;
    else if (letter == COLUMN_TIMESTAMP) field = 32;
    uint64_t *out = add_buffer(buffers, (uint64_t)w->batch.rows * 8);
    if (out == NULL) return false;
    Py_BEGIN_ALLOW_THREADS
    decode_u64(w->data, w->positions, w->batch.rows, field, out);
    Py_END_ALLOW_THREADS
    return true;
}

static bool fill_bytes(const work *w, char letter, column_buffers *buffers) {
    uint32_t rows = w->batch.rows;
    uint64_t size = letter == COLUMN_ID ? 16 * (uint64_t)rows
                                        : (letter == COLUMN_VALUE ? w->batch.value_bytes : w->batch.headers_bytes);
    int32_t *offsets = add_buffer(buffers, ((uint64_t)rows + 1) * 4);
    uint8_t *out = offsets != NULL ? add_buffer(buffers, size) : NULL;
    if (out == NULL) return false;
    Py_BEGIN_ALLOW_THREADS
    if (letter == COLUMN_ID) decode_ids(w->data, w->positions, rows, offsets, out);
    else if (letter == COLUMN_VALUE) decode_values(w->data, w->positions, rows, offsets, out);
    else decode_headers_raw(w->data, w->positions, rows, offsets, out);
    Py_END_ALLOW_THREADS
    return true;
}

static bool fill_keys(const work *w, column_buffers *buffers) {
    uint32_t rows = w->batch.rows;
    uint8_t *validity = add_buffer(buffers, (rows + 7u) / 8u);
    int32_t *offsets = validity != NULL ? add_buffer(buffers, ((uint64_t)rows + 1) * 4) : NULL;
    uint8_t *out = offsets != NULL ? add_buffer(buffers, w->batch.key_bytes) : NULL;
    if (out != NULL) decode_keys(w->data, w->positions, rows, &w->request, validity, offsets, out);
    return out != NULL;
}

static bool fill_headers(const work *w, column_buffers *buffers) {
    const decode_batch *b = &w->batch;
    int32_t *lists = add_buffer(buffers, ((uint64_t)b->rows + 1) * 4);
    int32_t *key_offsets = lists != NULL ? add_buffer(buffers, (b->header_entries + 1) * 4) : NULL;
    uint8_t *keys = key_offsets != NULL ? add_buffer(buffers, b->header_key_bytes) : NULL;
    int32_t *value_offsets = keys != NULL ? add_buffer(buffers, (b->header_entries + 1) * 4) : NULL;
    uint8_t *values = value_offsets != NULL ? add_buffer(buffers, b->header_value_bytes) : NULL;
    if (values != NULL) decode_headers(w->data, w->positions, b->rows, lists, key_offsets, keys, value_offsets, values);
    return values != NULL;
}

static bool fill(const work *w, char letter, column_buffers *buffers) {
    switch (letter) {
    case COLUMN_CHECKSUM:
    case COLUMN_OFFSET:
    case COLUMN_TIMESTAMP:
    case COLUMN_ORIGIN: return fill_fixed(w, letter, buffers);
    case COLUMN_ID:
    case COLUMN_VALUE:
    case COLUMN_HEADERS_RAW: return fill_bytes(w, letter, buffers);
    case COLUMN_KEY: return fill_keys(w, buffers);
    case COLUMN_HEADERS: return fill_headers(w, buffers);
    case COLUMN_CHECKSUM_OK: {
        uint8_t *bitmap = add_buffer(buffers, (w->batch.rows + 7u) / 8u);
        if (bitmap != NULL) decode_checksum_ok(w->positions, w->batch.rows, bitmap);
        return bitmap != NULL;
    }
    case COLUMN_POSITION: {
        uint64_t *out = add_buffer(buffers, (uint64_t)w->batch.rows * 8);
        for (uint32_t i = 0; out != NULL && i < w->batch.rows; i++)
            out[i] = (w->positions[i] & ~DECODE_BAD_BIT) + w->position;
        return out != NULL;
    }
    default: PyErr_Format(PyExc_ValueError, "no column '%c'", letter); return false;
    }
}

static PyObject *columns_of(const work *w, const char *letters, Py_ssize_t count) {
    PyObject *columns = PyTuple_New(count);
    for (Py_ssize_t i = 0; columns != NULL && i < count; i++) {
        column_buffers buffers = {.count = 0};
        bool good = fill(w, letters[i], &buffers);
        PyObject *parts = good ? PyTuple_New(buffers.count) : NULL;
        for (int n = 0; n < buffers.count; n++) {
            if (parts != NULL) PyTuple_SetItem(parts, n, buffers.parts[n]);
            else Py_DECREF(buffers.parts[n]);
        }
        if (parts == NULL) Py_CLEAR(columns);
        else PyTuple_SetItem(columns, i, parts);
    }
    return columns;
}

static PyStructSequence_Field rows_fields[] = {
    {"rows", NULL},         {"position", NULL},      {"next_offset", NULL}, {"fault", NULL},
    {"fault_offset", NULL}, {"bad_checksums", NULL}, {"columns", NULL},     {NULL, NULL}};
static PyStructSequence_Desc rows_description = {"shardd.spark._decode.DecodedRows", "One batch.", rows_fields, 7};
static PyTypeObject *rows_type;

/* Takes `columns` over, also on a failure. */
static PyObject *decoded_rows(const decode_batch *b, Py_ssize_t position, PyObject *columns) {
    PyObject *result = PyStructSequence_New(rows_type);
    PyObject *items[] = {PyLong_FromUnsignedLong(b->rows),
                         PyLong_FromSsize_t(position + (Py_ssize_t)b->consumed),
                         PyLong_FromUnsignedLongLong(b->next_offset),
                         PyLong_FromLong((long)b->fault),
                         PyLong_FromUnsignedLongLong(b->fault_offset),
                         PyLong_FromUnsignedLongLong(b->bad_checksums),
                         columns};
    bool whole = result != NULL;
    for (int i = 0; i < 7; i++) {
        whole = whole && items[i] != NULL;
        if (result != NULL) PyStructSequence_SetItem(result, i, items[i]);
        else Py_XDECREF(items[i]);
    }
    if (!whole) Py_CLEAR(result);
    return result;
}

static bool check_arguments(const Py_buffer *data, Py_ssize_t position, unsigned int rows_max,
                            unsigned long long bytes_max, int verify) {
    if (position < 0 || position > data->len) PyErr_SetString(PyExc_ValueError, "position lies outside of the data");
    else if (rows_max == 0 || rows_max > 1u << 24) PyErr_SetString(PyExc_ValueError, "rows_max must be 1..16777216");
    else if (bytes_max > DECODE_BYTES_MAX - (PAYLOAD_SIZE_MAX + USER_HEADERS_SIZE_MAX))
        PyErr_SetString(PyExc_ValueError, "bytes_max is too large for 32-bit offsets");
    else if (verify < DECODE_VERIFY_NO || verify > DECODE_VERIFY_REPORT)
        PyErr_SetString(PyExc_ValueError, "verify must be 0, 1 or 2");
    else return true;
    return false;
}

static PyObject *decode(PyObject *module, PyObject *args) {
    Py_buffer data, letters, key = {0};
    Py_ssize_t position;
    unsigned long long from_offset, to_offset, bytes_max;
    unsigned int rows_max;
    int verify, gaps = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nKKIKiy*z*|p", &data, &position, &from_offset, &to_offset, &rows_max, &bytes_max,
                          &verify, &letters, &key, &gaps))
        return NULL;
    PyObject *result = NULL;
    work w = {.positions = NULL};
    if (!check_arguments(&data, position, rows_max, bytes_max, verify)) goto done;
    w.data = (const uint8_t *)data.buf + position;
    w.position = (uint64_t)position;
    w.request = (decode_request){.from_offset = from_offset,
                                 .to_offset = to_offset,
                                 .gaps = gaps != 0,
                                 .rows_max = rows_max,
                                 .bytes_max = bytes_max,
                                 .verify = (decode_verify)verify,
                                 .key_name = key.buf,
                                 .key_name_length = (uint32_t)key.len,
                                 .count_headers = memchr(letters.buf, COLUMN_HEADERS, (size_t)letters.len) != NULL};
    /* no more rows than the data can hold */
    uint64_t rows_possible = (uint64_t)(data.len - position) / RECORD_HEADER_SIZE + 1;
    if (rows_possible < w.request.rows_max) w.request.rows_max = (uint32_t)rows_possible;
    w.positions = PyMem_Malloc(w.request.rows_max * sizeof *w.positions);
    if (w.positions == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    decode_index(w.data, (size_t)(data.len - position), &w.request, w.positions, &w.batch);
    Py_END_ALLOW_THREADS
    PyObject *columns = columns_of(&w, letters.buf, letters.len);
    if (columns != NULL) result = decoded_rows(&w.batch, position, columns);
done:
    PyMem_Free(w.positions);
    PyBuffer_Release(&data);
    PyBuffer_Release(&letters);
    if (key.obj != NULL) PyBuffer_Release(&key);
    return result;
}

static PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS, "One batch of records as Arrow buffers; see _decode.pyi."},
    {"encode", encode_call, METH_VARARGS, "Rows as one frame; see _decode.pyi."},
    {"ids_of", ids_call, METH_VARARGS, "The ids that are made from a seed; see _decode.pyi."},
    {"digests_of", digests_call, METH_VARARGS, "A digest of the content of each row; see _decode.pyi."},
    {"partitions_of", partitions_call, METH_VARARGS, "The partition of each key; see _decode.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "shardd.spark._decode",
                                        .m_doc = "Stored records to Arrow buffers, and back.", .m_size = -1,
                                        .m_methods = functions};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"OK", DECODE_OK},
    {"TRUNCATED", DECODE_TRUNCATED},
    {"BAD_LENGTH", DECODE_BAD_LENGTH},
    {"GAP", DECODE_GAP},
    {"BAD_CHECKSUM", DECODE_BAD_CHECKSUM},
    {"VERIFY_NO", DECODE_VERIFY_NO},
    {"VERIFY_STOP", DECODE_VERIFY_STOP},
    {"VERIFY_REPORT", DECODE_VERIFY_REPORT},
};

PyMODINIT_FUNC PyInit__decode(void) {
    PyObject *module = PyModule_Create(&definition);
    if (rows_type == NULL) rows_type = PyStructSequence_NewType(&rows_description);
    if (module != NULL &&
        (rows_type == NULL || PyModule_AddObjectRef(module, "DecodedRows", (PyObject *)rows_type) != 0))
        Py_CLEAR(module);
    for (size_t i = 0; module != NULL && i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0) Py_CLEAR(module);
    return module;
}
