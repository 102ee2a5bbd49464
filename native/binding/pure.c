/* Functions of the core that need no engine: placement, request parsing, assignment, scans (see _native.pyi). */
#include "binding.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "log/batch.h"
#include "base/hash.h"
#include "base/status.h"
#include "log/record.h"
#include "wire/record_forms.h"

/* "O&" converters that refuse what does not fit, instead of wrapping. */
static int convert_u64(PyObject *object, void *out) {
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return 0;
    *(uint64_t *)out = value;
    return 1;
}

static int convert_u32(PyObject *object, void *out) {
    uint64_t value;
    if (!convert_u64(object, &value)) return 0;
    if (value > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the value does not fit into 32 bits");
        return 0;
    }
    *(uint32_t *)out = (uint32_t)value;
    return 1;
}

static PyObject *pure_owner(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"namespace", "shards", NULL};
    uint64_t ns;
    uint32_t shards;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&", names, convert_u64, &ns, convert_u32, &shards)) return NULL;
    if (shards == 0) {
        PyErr_SetString(PyExc_ValueError, "shards must be at least 1");
        return NULL;
    }
    return PyLong_FromUnsignedLong(hash_owner(ns, shards));
}

static PyObject *pure_xxh32(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", NULL};
    Py_buffer data;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*", names, &data)) return NULL;
    uint32_t hash = hash_xxh32(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(hash);
}

/* `index` (NULL: none) is taken over. */
static PyObject *scan_result(const record_scan *scan, PyObject *index) {
#define SCAN_NUMBERS \
    SHARDD_NUMBER(scan->valid_bytes), SHARDD_NUMBER(scan->count), SHARDD_NUMBER(scan->next_offset), \
        SHARDD_NUMBER(scan->first_timestamp), SHARDD_NUMBER(scan->last_timestamp), SHARDD_NUMBER(scan->fault)
    return index != NULL ? SHARDD_RESULT(SHARDD_INDEXED_SCAN, SCAN_NUMBERS, index)
                         : SHARDD_RESULT(SHARDD_SCAN, SCAN_NUMBERS);
#undef SCAN_NUMBERS
}

static PyObject *pure_scan_file(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {
        "log_fd", "from_position", "segment_start_offset", "expected_offset", "minimum_timestamp", "index_fd", NULL};
    int log_fd, index_fd, result;
    uint64_t from, start, expected, minimum;
    record_scan scan;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO&O&O&O&i", names, &log_fd, convert_u64, &from, convert_u64,
                                     &start, convert_u64, &expected, convert_u64, &minimum, &index_fd))
        return NULL;
    if (expected < start) {
        PyErr_SetString(PyExc_ValueError, "expected_offset is below segment_start_offset");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = record_scan_file(log_fd, from, start, expected, minimum, index_fd, &scan);
    Py_END_ALLOW_THREADS
    return result != 0 ? PyErr_SetFromErrno(PyExc_OSError) : scan_result(&scan, NULL);
}

static PyObject *pure_find_later(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {
        "log_fd", "from_position", "at_least_offset", "minimum_timestamp", "at_most_offset", "end_position", NULL};
    int log_fd, result;
    record_wanted wanted = {.end_position = UINT64_MAX, .at_most_offset = UINT64_MAX};
    record_found found;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO&O&|O&O&O&", names, &log_fd, convert_u64, &wanted.from_position,
                                     convert_u64, &wanted.at_least_offset, convert_u64, &wanted.minimum_timestamp,
                                     convert_u64, &wanted.at_most_offset, convert_u64, &wanted.end_position))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = record_find_later(log_fd, &wanted, &found);
    Py_END_ALLOW_THREADS
    if (result != 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (!found.found) Py_RETURN_NONE;
    return SHARDD_RESULT(SHARDD_FOUND_RECORD, SHARDD_NUMBER(found.position), SHARDD_NUMBER(found.offset));
}

static PyObject *pure_scan_buffer(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {
        "data", "expected_offset", "minimum_timestamp", "segment_start_offset", "base_position", "sparse_end", NULL};
    Py_buffer data;
    uint64_t expected, minimum, start, base, sparse_end = 0;
    record_scan scan;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*O&O&O&O&|O&", names, &data, convert_u64, &expected, convert_u64,
                                     &minimum, convert_u64, &start, convert_u64, &base, convert_u64, &sparse_end))
        return NULL;
    size_t entries_max = (size_t)data.len / RECORD_HEADER_SIZE + 1;
    index_entry *entries = PyMem_Malloc(entries_max * sizeof *entries);
    if (entries == NULL) {
        PyBuffer_Release(&data);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS /* the buffer is held, and bytes do not change */
    record_scan_sparse(data.buf, (size_t)data.len, expected, sparse_end, minimum, start, base, entries, entries_max,
                       &scan);
    Py_END_ALLOW_THREADS
    PyObject *index = PyBytes_FromStringAndSize((const char *)entries, (Py_ssize_t)(scan.count * INDEX_ENTRY_SIZE));
    PyMem_Free(entries);
    PyBuffer_Release(&data);
    return index != NULL ? scan_result(&scan, index) : NULL;
}

static PyObject *pure_send_request_parse(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", NULL};
    Py_buffer payload;
    send_request request;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*", names, &payload)) return NULL;
    PyObject *parsed = Py_NewRef(Py_None);
    uint32_t status = send_request_parse(payload.buf, (size_t)payload.len, &request); /* only reads */
    if (status == STATUS_OK) {
        Py_DECREF(parsed);
        parsed = SHARDD_RESULT(SHARDD_SEND_REQUEST, SHARDD_BYTES(request.address, request.stream_length),
                               SHARDD_BYTES(request.address + request.stream_length, request.topic_length),
                               SHARDD_NUMBER(request.partitioning), SHARDD_NUMBER(request.partition_id),
                               SHARDD_BYTES(request.key, request.key_length), SHARDD_NUMBER(request.count),
                               SHARDD_NUMBER((size_t)(request.messages - (uint8_t *)payload.buf)));
    }
    PyBuffer_Release(&payload);
    return Py_BuildValue("IN", (unsigned int)status, parsed);
}

static PyObject *pure_batch_check(PyObject *module, PyObject *args) {
    Py_buffer batch;
    unsigned count;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*I", &batch, &count)) return NULL;
    uint32_t status = batch_check(batch.buf, (size_t)batch.len, count);
    PyBuffer_Release(&batch);
    return PyLong_FromUnsignedLong(status);
}

static PyObject *pure_batch_from_sent(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned form, count;
    sent_records found;
    PyObject *batch = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*II", &data, &form, &count)) return NULL;
    uint32_t status = sent_records_measure(data.buf, (size_t)data.len, (send_form)form, count, &found);
    if (status == STATUS_OK) batch = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)found.batch_length);
    if (batch != NULL) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(batch);
        Py_BEGIN_ALLOW_THREADS
        sent_records_write(data.buf, (size_t)data.len, (send_form)form, &found, out);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    if (status == STATUS_OK && batch == NULL) return NULL;
    if (batch == NULL) batch = PyBytes_FromStringAndSize(NULL, 0);
    return SHARDD_RESULT(SHARDD_SENT_BATCH, SHARDD_NUMBER(status), SHARDD_NUMBER(found.count), batch);
}

/* Are these exactly `count` records by their length fields? (batch_assign itself trusts the validation.) */
static bool records_fit(const uint8_t *messages, size_t length, uint32_t count) {
    size_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (length - position < RECORD_HEADER_SIZE) return false;
        uint64_t size = record_size(messages + position);
        if (size == 0 || size > length - position) return false;
        position += size;
    }
    return position == length;
}

static PyObject *pure_records_to_form(PyObject *module, PyObject *args) {
    Py_buffer records;
    unsigned form, count;
    PyObject *out = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*II", &records, &count, &form)) return NULL;
    if (!records_fit(records.buf, (size_t)records.len, count)) {
        PyErr_SetString(PyExc_ValueError, "these are not so many records");
    } else {
        out = PyBytes_FromStringAndSize(records.buf, records.len);
    }
    PyBuffer_Release(&records);
    if (out == NULL) return NULL;
    size_t length = (size_t)PyBytes_Size(out);
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(out);
    Py_BEGIN_ALLOW_THREADS
    length = records_to_form(bytes, length, (record_form)form);
    Py_END_ALLOW_THREADS
    if (length == (size_t)PyBytes_Size(out)) return out;
    PyObject *shorter = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)length);
    Py_DECREF(out);
    return shorter;
}

static PyObject *pure_batch_assign(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"messages",        "count",    "first_offset", "timestamp",
                            "relative_offset", "position", "seed",         NULL};
    Py_buffer messages;
    uint32_t count, relative, position;
    uint64_t first, timestamp, seed;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*O&O&O&O&O&O&", names, &messages, convert_u32, &count, convert_u64,
                                     &first, convert_u64, &timestamp, convert_u32, &relative, convert_u32, &position,
                                     convert_u64, &seed))
        return NULL;
    if (!records_fit(messages.buf, (size_t)messages.len, count)) {
        PyBuffer_Release(&messages);
        PyErr_SetString(PyExc_ValueError, "messages are not exactly `count` records");
        return NULL;
    }
    PyObject *records = PyBytes_FromStringAndSize(messages.buf, messages.len);
    PyObject *index = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * INDEX_ENTRY_SIZE);
    PyBuffer_Release(&messages);
    /* The entries go through memory that is aligned for them; a bytes object need not be. */
    index_entry *entries = PyMem_Malloc(((size_t)count + 1) * sizeof *entries);
    if (records == NULL || index == NULL || entries == NULL) {
        Py_XDECREF(records);
        Py_XDECREF(index);
        PyMem_Free(entries);
        return PyErr_NoMemory();
    }
    id_source ids;
    id_source_seed_fixed(&ids, seed);
    batch_assign((uint8_t *)PyBytes_AsString(records), (uint64_t)PyBytes_Size(records), count, first, timestamp,
                 relative, position, &ids, entries);
    memcpy(PyBytes_AsString(index), entries, (size_t)count * INDEX_ENTRY_SIZE);
    PyMem_Free(entries);
    return Py_BuildValue("NN", records, index);
}

/* Whole records from the front of `data`: (their bytes, 24 for each: id and timestamp). It ends before the first one
 * that is not whole, not at its offset or damaged. */
static PyObject *pure_record_ids(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned long long offset;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*K", &data, &offset)) return NULL;
    const uint8_t *bytes = data.buf;
    uint64_t end = (uint64_t)data.len, at = 0, count = 0, size;
    PyObject *ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(end / RECORD_HEADER_SIZE * 24));
    if (ids == NULL) {
        PyBuffer_Release(&data);
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(ids);
    Py_BEGIN_ALLOW_THREADS
    for (; end - at >= RECORD_HEADER_SIZE; at += size, count++) {
        const uint8_t *record = bytes + at;
        size = record_size(record);
        if (size == 0 || size > end - at || load_u64(record + 24) != offset + count ||
            load_u64(record) != checksum_64(record + 8, size - 8))
            break;
        memcpy(out + count * 24, record + 8, 16);
        memcpy(out + count * 24 + 16, record + 32, 8);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    PyObject *used = PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)(count * 24));
    Py_DECREF(ids);
    return Py_BuildValue("KN", (unsigned long long)at, used);
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))
PyMethodDef shardd_pure_methods[] = {
    {"owner", KEYWORDS(pure_owner), METH_VARARGS | METH_KEYWORDS, "Shard that owns a namespace."},
    {"xxh32", KEYWORDS(pure_xxh32), METH_VARARGS | METH_KEYWORDS, "XXH32 with seed 0."},
    {"scan_file", KEYWORDS(pure_scan_file), METH_VARARGS | METH_KEYWORDS, "Scans a log, writes its index."},
    {"find_later", KEYWORDS(pure_find_later), METH_VARARGS | METH_KEYWORDS, "Where is the next valid record?"},
    {"scan_buffer", KEYWORDS(pure_scan_buffer), METH_VARARGS | METH_KEYWORDS, "Scans records in memory."},
    {"record_ids", pure_record_ids, METH_VARARGS, "Ids and timestamps of whole records."},
    {"send_request_parse", KEYWORDS(pure_send_request_parse), METH_VARARGS | METH_KEYWORDS,
     "Parses and validates a SEND_MESSAGES payload."},
    {"batch_check", pure_batch_check, METH_VARARGS, "Checks index entries and records of a send."},
    {"batch_from_sent", pure_batch_from_sent, METH_VARARGS, "A batch from what earlier clients send."},
    {"records_to_form", pure_records_to_form, METH_VARARGS, "Stored records as earlier clients read them."},
    {"batch_assign", KEYWORDS(pure_batch_assign), METH_VARARGS | METH_KEYWORDS, "Records and index as stored."},
    {NULL, NULL, 0, NULL},
};
