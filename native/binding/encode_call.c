#include "encode_call.h"

#include <stdbool.h>

#include "log/encode.h"

/* The buffers of a batch, in the order of the contract. */
typedef enum part {
    VALUE_OFFSETS,
    VALUES,
    RAW_OFFSETS,
    RAW,
    KEY_OFFSETS,
    KEYS,
    KEY_NAME,
    ENTRY_OFFSETS,
    ENTRY_KEY_OFFSETS,
    ENTRY_KEYS,
    ENTRY_VALUE_OFFSETS,
    ENTRY_VALUES,
    ID_OFFSETS,
    IDS,
    ORIGINS,
    PARTS
} part;

typedef struct buffers {
    Py_buffer parts[PARTS];
} buffers;

static void release(buffers *b) {
    for (int i = 0; i < PARTS; i++)
        if (b->parts[i].obj != NULL) PyBuffer_Release(&b->parts[i]);
}

/* None: a buffer that is not there. */
static bool take(PyObject *columns, buffers *b) {
    *b = (buffers){0};
    if (!PyTuple_Check(columns) || PyTuple_Size(columns) != PARTS) {
        PyErr_Format(PyExc_ValueError, "columns must be a tuple of %d buffers", (int)PARTS);
        return false;
    }
    for (int i = 0; i < PARTS; i++) {
        PyObject *each = PyTuple_GetItem(columns, i);
        if (each == Py_None) continue;
        if (PyObject_GetBuffer(each, &b->parts[i], PyBUF_SIMPLE) != 0) {
            release(b);
            return false;
        }
    }
    return true;
}

static encode_bytes bytes_of(const buffers *b, part offsets, part data) {
    return (encode_bytes){.offsets = b->parts[offsets].buf,
                          .data = b->parts[data].buf,
                          .offset_count = (uint64_t)b->parts[offsets].len / sizeof(int32_t),
                          .data_length = (uint64_t)b->parts[data].len};
}

static bool long_enough(const Py_buffer *buffer, uint32_t rows, size_t size) {
    if (buffer->buf == NULL || (uint64_t)buffer->len >= (uint64_t)rows * size) return true;
    PyErr_SetString(PyExc_ValueError, "a buffer has fewer rows than the batch");
    return false;
}

static const char *const faults[] = {
    [ENCODE_BAD_BUFFERS] = "the offsets of a column lie outside of its data",
    [ENCODE_LARGE_VALUE] = "the value has more than 64000000 bytes",
    [ENCODE_LARGE_HEADERS] = "the headers have more than 100000 bytes",
    [ENCODE_BAD_HEADER] = "the key of a header has 1 to 255 bytes, its value 0 to 255",
    [ENCODE_BAD_ID] = "the id has not 16 bytes",
};

static PyObject *make_frame(const encode_rows *rows, int32_t partition, uint32_t from, uint64_t bytes_max,
                            const Py_buffer *head) {
    encode_frame_size size;
    Py_BEGIN_ALLOW_THREADS
    encode_measure(rows, partition, from, bytes_max, (uint32_t)head->len, &size);
    Py_END_ALLOW_THREADS
    if (size.fault != ENCODE_OK) {
        PyErr_Format(PyExc_ValueError, "row %u of the batch: %s", size.fault_row, faults[size.fault]);
        return NULL;
    }
    if (size.rows == 0) return Py_BuildValue("OI", Py_None, size.next_row);
    if (size.bytes > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a frame would have more than 4 GiB");
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size.bytes);
    if (frame == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(frame);
    Py_BEGIN_ALLOW_THREADS
    encode_frame(rows, partition, from, head->buf, (uint32_t)head->len, &size, out);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("NI", frame, size.next_row);
}

static encode_rows rows_of(const buffers *b, uint32_t count) {
    return (encode_rows){.rows = count,
                         .values = bytes_of(b, VALUE_OFFSETS, VALUES),
                         .headers_raw = bytes_of(b, RAW_OFFSETS, RAW),
                         .keys = bytes_of(b, KEY_OFFSETS, KEYS),
                         .key_name = b->parts[KEY_NAME].buf,
                         .key_name_length = (uint32_t)b->parts[KEY_NAME].len,
                         .entries = {.offsets = b->parts[ENTRY_OFFSETS].buf,
                                     .offset_count = (uint64_t)b->parts[ENTRY_OFFSETS].len / sizeof(int32_t),
                                     .data_length = INT32_MAX},
                         .entry_keys = bytes_of(b, ENTRY_KEY_OFFSETS, ENTRY_KEYS),
                         .entry_values = bytes_of(b, ENTRY_VALUE_OFFSETS, ENTRY_VALUES),
                         .ids = bytes_of(b, ID_OFFSETS, IDS),
                         .origins = b->parts[ORIGINS].buf};
}

PyObject *encode_call(PyObject *module, PyObject *args) {
    PyObject *columns;
    unsigned int count, from;
    Py_buffer head, partitions = {0}, seed = {0}, once = {0};
    int partition;
    unsigned long long position, bytes_max;
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIy*z*iKz*K|z*", &columns, &count, &from, &head, &partitions, &partition, &bytes_max,
                          &seed, &position, &once))
        return NULL;
    PyObject *result = NULL;
    buffers b;
    if (take(columns, &b)) {
        encode_rows rows = rows_of(&b, count);
        rows.seed = seed.buf;
        rows.position = position;
        rows.partitions = partitions.buf;
        rows.once = once.buf;
        bool good = long_enough(&b.parts[ORIGINS], count, sizeof(uint64_t)) &&
                    long_enough(&partitions, count, sizeof(int32_t));
        if (good && seed.buf != NULL && seed.len != 16) {
            PyErr_SetString(PyExc_ValueError, "seed must have 16 bytes");
            good = false;
        }
        if (good && once.buf != NULL && once.len != ENCODE_ONCE_BYTES) {
            PyErr_SetString(PyExc_ValueError, "the head of a SEND_ONCE_DIGEST has 20 bytes before the digest");
            good = false;
        }
        if (good && from > count) {
            PyErr_SetString(PyExc_ValueError, "from lies behind the rows");
            good = false;
        }
        if (good) result = make_frame(&rows, partition, from, bytes_max, &head);
        release(&b);
    }
    PyBuffer_Release(&head);
    if (partitions.obj != NULL) PyBuffer_Release(&partitions);
    if (seed.obj != NULL) PyBuffer_Release(&seed);
    if (once.obj != NULL) PyBuffer_Release(&once);
    return result;
}

PyObject *ids_call(PyObject *module, PyObject *args) {
    Py_buffer seed;
    unsigned long long position;
    unsigned int rows;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*KI", &seed, &position, &rows)) return NULL;
    PyObject *result = NULL;
    if (seed.len != 16) {
        PyErr_SetString(PyExc_ValueError, "seed must have 16 bytes");
    } else {
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows * 16);
        if (result != NULL) encode_ids(seed.buf, position, rows, (uint8_t *)(void *)PyBytes_AsString(result));
    }
    PyBuffer_Release(&seed);
    return result;
}

PyObject *digests_call(PyObject *module, PyObject *args) {
    PyObject *columns, *result = NULL;
    unsigned int count;
    buffers b;
    (void)module;
    if (!PyArg_ParseTuple(args, "OI", &columns, &count) || !take(columns, &b)) return NULL;
    encode_rows rows = rows_of(&b, count);
    uint32_t bad_row = 0;
    encode_fault fault = ENCODE_OK;
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    if (result != NULL) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        fault = encode_digests(&rows, out, &bad_row);
        Py_END_ALLOW_THREADS
    }
    if (fault != ENCODE_OK) {
        Py_CLEAR(result);
        PyErr_Format(PyExc_ValueError, "row %u of the batch: %s", bad_row, faults[fault]);
    }
    release(&b);
    return result;
}

PyObject *partitions_call(PyObject *module, PyObject *args) {
    Py_buffer offsets, keys;
    unsigned int rows, partitions;
    int otherwise;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*IIi", &offsets, &keys, &rows, &partitions, &otherwise)) return NULL;
    encode_bytes column = {.offsets = offsets.buf,
                           .data = keys.buf,
                           .offset_count = (uint64_t)offsets.len / sizeof(int32_t),
                           .data_length = (uint64_t)keys.len};
    PyObject *result = NULL;
    if (partitions == 0 || partitions > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "partitions must be 1..2147483647");
    } else if (long_enough(&offsets, rows, sizeof(int32_t))) {
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows * (Py_ssize_t)sizeof(int32_t));
        if (result != NULL &&
            !encode_partitions(&column, rows, partitions, otherwise, (int32_t *)(void *)PyBytes_AsString(result))) {
            Py_CLEAR(result);
            PyErr_SetString(PyExc_ValueError, faults[ENCODE_BAD_BUFFERS]);
        }
    }
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&keys);
    return result;
}
