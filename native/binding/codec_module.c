/* shardd.client._codec: a client's loops over messages. Contract: shardd/client/_codec.pyi. It does what
 * shardd/client/messages.py does, and links nothing of the core. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "log/record.h"

#define POLLED_HEAD_SIZE 16u /* u32 partition, u64 current offset, u32 count */
#define MESSAGE_FIELDS 8

static void store_u32(char *out, uint32_t value) { memcpy(out, &value, sizeof value); }
static void store_u64(char *out, uint64_t value) { memcpy(out, &value, sizeof value); }

/* A new reference to bytes with the content of `item`, which has a buffer. */
static PyObject *as_bytes(PyObject *item) {
    if (item == NULL) return NULL;
    if (PyBytes_Check(item)) return Py_NewRef(item);
    if (PyObject_CheckBuffer(item)) return PyBytes_FromObject(item);
    PyErr_SetString(PyExc_TypeError, "a payload has to be bytes");
    return NULL;
}

/* ---- producers ---- */

static PyObject *record_of(const char *payload, Py_ssize_t payload_size, const char *headers, Py_ssize_t headers_size) {
    if (payload_size > (Py_ssize_t)PAYLOAD_SIZE_MAX) {
        PyErr_Format(PyExc_ValueError, "a payload has more than %u bytes", PAYLOAD_SIZE_MAX);
        return NULL;
    }
    PyObject *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)RECORD_HEADER_SIZE + payload_size + headers_size);
    if (record == NULL) return NULL;
    char *out = PyBytes_AsString(record);
    memset(out, 0, RECORD_HEADER_SIZE);
    store_u32(out + 48, (uint32_t)headers_size);
    store_u32(out + 52, (uint32_t)payload_size);
    memcpy(out + RECORD_HEADER_SIZE, payload, (size_t)payload_size);
    memcpy(out + RECORD_HEADER_SIZE + payload_size, headers, (size_t)headers_size);
    return record;
}

static PyObject *records_of(PyObject *module, PyObject *args) {
    PyObject *payloads;
    const char *headers = "";
    Py_ssize_t headers_size = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!|y#", &PyList_Type, &payloads, &headers, &headers_size)) return NULL;
    if (headers_size > (Py_ssize_t)USER_HEADERS_SIZE_MAX) {
        PyErr_SetString(PyExc_ValueError, "the headers are too large");
        return NULL;
    }
    PyObject *records = PyList_New(0);
    /* the size is asked each time: to make bytes of something may run code that changes the list */
    for (Py_ssize_t i = 0; records != NULL && i < PyList_Size(payloads); i++) {
        PyObject *payload = as_bytes(PyList_GetItem(payloads, i)), *record = NULL;
        char *data;
        Py_ssize_t size;
        if (payload != NULL && PyBytes_AsStringAndSize(payload, &data, &size) == 0)
            record = record_of(data, size, headers, headers_size);
        if (record == NULL || PyList_Append(records, record) != 0) Py_CLEAR(records);
        Py_XDECREF(record);
        Py_XDECREF(payload);
    }
    return records;
}

/* The bytes of all items of a list, which are bytes; -1 with an exception. */
static int64_t size_of_all(PyObject *records, Py_ssize_t count) {
    int64_t size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t one = PyBytes_Size(PyList_GetItem(records, i));
        if (one < 0) return -1;
        size += one;
    }
    if (size <= UINT32_MAX) return size;
    PyErr_SetString(PyExc_ValueError, "a batch has more bytes than its index can say");
    return -1;
}

static PyObject *encode_batch(PyObject *module, PyObject *args) {
    const char *head;
    Py_ssize_t head_size;
    PyObject *records;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#O!", &head, &head_size, &PyList_Type, &records)) return NULL;
    Py_ssize_t count = PyList_Size(records);
    int64_t size = size_of_all(records, count);
    if (size < 0) return NULL;
    Py_ssize_t before = 4 + head_size + 4, index = (Py_ssize_t)INDEX_ENTRY_SIZE * count;
    PyObject *payload = PyBytes_FromStringAndSize(NULL, before + index + (Py_ssize_t)size);
    if (payload == NULL) return NULL;
    char *out = PyBytes_AsString(payload), *entry = out + before, *at = entry + index;
    store_u32(out, (uint32_t)(head_size + 4));
    memcpy(out + 4, head, (size_t)head_size);
    store_u32(out + 4 + head_size, (uint32_t)count);
    uint32_t end = 0;
    for (Py_ssize_t i = 0; i < count; i++, entry += INDEX_ENTRY_SIZE) {
        PyObject *record = PyList_GetItem(records, i);
        size_t one = (size_t)PyBytes_Size(record);
        memcpy(at, PyBytes_AsString(record), one);
        at += one;
        end += (uint32_t)one;
        store_u32(entry, 0);
        store_u32(entry + 4, end);
        store_u64(entry + 8, 0);
    }
    return payload;
}

/* ---- polls ---- */

typedef struct polled {
    const uint8_t *data, *end;
    uint32_t partition, count;
    uint64_t current_offset, next_offset; /* `next_offset`: behind the last message, 0: there is none */
    uint64_t last_checksum;               /* of that message */
    uint64_t payload_bytes;
} polled;

static const uint8_t *payload_of(const uint8_t *record) { return record + RECORD_HEADER_SIZE; }
static uint32_t headers_size_of(const uint8_t *record) { return load_u32(record + 48); }
static uint32_t payload_size_of(const uint8_t *record) { return load_u32(record + 52); }
static const uint8_t *behind(const uint8_t *record) {
    return payload_of(record) + payload_size_of(record) + headers_size_of(record);
}

/* Reads the head, which may be longer than a classic one, and looks whether all messages are there; false with an
 * exception. */
static bool read_polled(const uint8_t *answer, Py_ssize_t size, Py_ssize_t head_size, polled *out) {
    bool whole = head_size >= (Py_ssize_t)POLLED_HEAD_SIZE && size >= head_size;
    const uint8_t *end = answer + size, *at = whole ? answer + head_size : end;
    *out = (polled){.data = at, .end = end};
    if (whole) {
        out->partition = load_u32(answer);
        out->current_offset = load_u64(answer + 4);
        out->count = load_u32(answer + 12);
    }
    for (uint32_t i = 0; whole && i < out->count; i++) {
        whole = end - at >= (ptrdiff_t)RECORD_HEADER_SIZE &&
                end - at - (ptrdiff_t)RECORD_HEADER_SIZE >= (ptrdiff_t)payload_size_of(at) + headers_size_of(at);
        if (whole) {
            out->next_offset = load_u64(at + 24) + 1;
            out->last_checksum = load_u64(at);
            out->payload_bytes += payload_size_of(at);
            at = behind(at);
        }
    }
    if (!whole) PyErr_SetString(PyExc_ValueError, "a poll's answer is cut");
    return whole;
}

/* What all messages of a poll have in common. */
typedef struct shared {
    newfunc new_tuple; /* tuple.__new__ */
    PyTypeObject *kind;
    PyObject *partition, *arguments, *sixty_four; /* `arguments`: a tuple of one place, used again and again */
} shared;

static PyObject *number_of_id(const uint8_t *record, const shared *s) {
    uint64_t low = load_u64(record + 8), high = load_u64(record + 16);
    if (high == 0) return PyLong_FromUnsignedLongLong(low);
    PyObject *upper = PyLong_FromUnsignedLongLong(high), *lower = PyLong_FromUnsignedLongLong(low);
    PyObject *shifted = upper != NULL ? PyNumber_Lshift(upper, s->sixty_four) : NULL, *number = NULL;
    if (shifted != NULL && lower != NULL) number = PyNumber_Or(shifted, lower);
    Py_XDECREF(upper);
    Py_XDECREF(lower);
    Py_XDECREF(shifted);
    return number;
}

static PyObject *fields_of(const uint8_t *record, const shared *s) {
    const char *payload = (const char *)payload_of(record);
    uint32_t payload_size = payload_size_of(record);
    PyObject *fields = PyTuple_New(MESSAGE_FIELDS);
    PyObject *items[MESSAGE_FIELDS] = {
        Py_NewRef(s->partition),
        PyLong_FromUnsignedLongLong(load_u64(record + 24)),
        PyLong_FromUnsignedLongLong(load_u64(record + 32)),
        PyBytes_FromStringAndSize(payload, (Py_ssize_t)payload_size),
        PyBytes_FromStringAndSize(payload + payload_size, (Py_ssize_t)headers_size_of(record)),
        number_of_id(record, s),
        PyLong_FromUnsignedLongLong(load_u64(record + 40)),
        PyLong_FromUnsignedLongLong(load_u64(record)),
    };
    bool whole = fields != NULL;
    for (int i = 0; i < MESSAGE_FIELDS; i++) {
        whole = whole && items[i] != NULL;
        if (fields != NULL) PyTuple_SetItem(fields, i, items[i]);
        else Py_XDECREF(items[i]);
    }
    if (!whole) Py_CLEAR(fields);
    return fields;
}

/* As `tuple.__new__(kind, fields)`. */
static PyObject *message_of(const uint8_t *record, const shared *s) {
    PyObject *fields = fields_of(record, s);
    if (fields == NULL || PyTuple_SetItem(s->arguments, 0, fields) != 0) return NULL;
    return s->new_tuple(s->kind, s->arguments, NULL);
}

/* `kind`: a class of tuples with nothing of its own. */
static PyObject *messages_of(const polled *p, PyTypeObject *kind) {
    shared s = {.new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new),
                .kind = kind,
                .partition = PyLong_FromUnsignedLong(p->partition),
                .arguments = PyTuple_New(1),
                .sixty_four = PyLong_FromLong(64)};
    PyObject *messages = PyList_New((Py_ssize_t)p->count);
    const uint8_t *record = p->data;
    if (s.partition == NULL || s.arguments == NULL || s.sixty_four == NULL) Py_CLEAR(messages);
    for (uint32_t i = 0; messages != NULL && i < p->count; i++, record = behind(record)) {
        PyObject *message = message_of(record, &s);
        if (message == NULL) Py_CLEAR(messages);
        else PyList_SetItem(messages, (Py_ssize_t)i, message);
    }
    Py_XDECREF(s.partition);
    Py_XDECREF(s.arguments);
    Py_XDECREF(s.sixty_four);
    return messages;
}

static PyObject *decode_polled(PyObject *module, PyObject *args) {
    const char *answer;
    Py_ssize_t size, head_size = POLLED_HEAD_SIZE;
    PyObject *kind;
    polled p;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#O!|n", &answer, &size, &PyType_Type, &kind, &head_size)) return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "messages have to be tuples");
        return NULL;
    }
    if (!read_polled((const uint8_t *)answer, size, head_size, &p)) return NULL;
    PyObject *messages = messages_of(&p, (PyTypeObject *)kind);
    if (messages == NULL) return NULL;
    return Py_BuildValue("(kKN)", (unsigned long)p.partition, (unsigned long long)p.current_offset, messages);
}

static PyObject *payload_lines(PyObject *module, PyObject *args) {
    const char *answer;
    Py_ssize_t size, head_size = POLLED_HEAD_SIZE;
    polled p;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#|n", &answer, &size, &head_size)) return NULL;
    if (!read_polled((const uint8_t *)answer, size, head_size, &p)) return NULL;
    PyObject *lines = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(p.payload_bytes + p.count));
    if (lines == NULL) return NULL;
    char *out = PyBytes_AsString(lines);
    const uint8_t *record = p.data;
    for (uint32_t i = 0; i < p.count; i++, record = behind(record)) {
        memcpy(out, payload_of(record), payload_size_of(record));
        out += payload_size_of(record);
        *out++ = '\n';
    }
    return Py_BuildValue("(kKKN)", (unsigned long)p.count, (unsigned long long)p.next_offset,
                         (unsigned long long)p.last_checksum, lines);
}

static PyMethodDef functions[] = {
    {"records_of", records_of, METH_VARARGS, "Records of payloads."},
    {"encode_batch", encode_batch, METH_VARARGS, "The payload of SEND_MESSAGES."},
    {"decode_polled", decode_polled, METH_VARARGS, "Partition, current offset and messages of a poll."},
    {"payload_lines", payload_lines, METH_VARARGS, "Count, next offset, last checksum and payloads of a poll."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "shardd.client._codec",
                                        .m_doc = "Messages of a client.", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__codec(void) { return PyModule_Create(&definition); }
