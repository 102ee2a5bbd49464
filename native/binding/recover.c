/* Functions of the module for recoveries: a healthy partition in one call, the digest of a log. */
#include "binding.h"

#include <errno.h>
#include <string.h>

#include "log/digest.h"
#include "log/recover.h"

PyObject *shardd_segment_row(const segment_info *s) {
    return SHARDD_RESULT(SHARDD_SEGMENT, SHARDD_NUMBER(s->start_offset), SHARDD_NUMBER(s->log_bytes),
                         SHARDD_NUMBER(s->count), SHARDD_NUMBER(s->first_timestamp), SHARDD_NUMBER(s->last_timestamp),
                         SHARDD_NUMBER(s->absent), SHARDD_NUMBER(s->layout != NULL ? s->layout->bits : 0),
                         SHARDD_NUMBER(s->counted_us));
}

static PyObject *segment_list(const recovered_partition *found) {
    PyObject *list = PyList_New((Py_ssize_t)found->segments_count);
    for (size_t i = 0; list != NULL && i < found->segments_count; i++) {
        PyObject *row = shardd_segment_row(&found->segments[i]);
        if (row == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, (Py_ssize_t)i, row);
    }
    return list;
}

static PyObject *group_list(const recovered_partition *found) {
    PyObject *list = PyList_New((Py_ssize_t)found->groups_count);
    for (size_t i = 0; list != NULL && i < found->groups_count; i++) {
        PyObject *id = PyLong_FromUnsignedLong(found->groups[i]);
        if (id == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, (Py_ssize_t)i, id);
    }
    return list;
}

static PyObject *unsealed_list(const recovered_partition *found) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i + 1 < found->segments_count; i++) {
        if (found->sealed[i]) continue;
        PyObject *start = PyLong_FromUnsignedLongLong(found->segments[i].start_offset);
        if (start == NULL || PyList_Append(list, start) != 0) Py_CLEAR(list);
        Py_XDECREF(start);
    }
    return list;
}

/* 16 bytes; none: of no boot that has written anything. */
static int boot_of(PyObject *object, void *out) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) != 0) return 0;
    if (length != PRODUCERS_BOOT_BYTES && length != 0) {
        PyErr_Format(PyExc_ValueError, "a boot of %zd bytes", length);
        return 0;
    }
    memset(out, 0, PRODUCERS_BOOT_BYTES);
    memcpy(out, bytes, (size_t)length);
    return 1;
}

static PyObject *call_producers_proven_end(PyObject *module, PyObject *args) {
    const char *content;
    Py_ssize_t length;
    unsigned long long incarnation, end;
    uint8_t boot[PRODUCERS_BOOT_BYTES];
    int torn;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#KO&Kp", &content, &length, &incarnation, boot_of, boot, &end, &torn)) return NULL;
    end = producers_proven_end((const uint8_t *)content, (size_t)length, incarnation, boot, end, torn != 0);
    return SHARDD_NUMBER(end);
}

static PyObject *call_recover_partition(PyObject *module, PyObject *args) {
    const char *directory;
    unsigned long long incarnation;
    recovered_partition found;
    uint8_t boot[PRODUCERS_BOOT_BYTES];
    bool clean;
    (void)module;
    if (!PyArg_ParseTuple(args, "sKO&", &directory, &incarnation, boot_of, boot)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    clean = recover_partition(directory, incarnation, boot, &found);
    Py_END_ALLOW_THREADS
    if (!clean) Py_RETURN_NONE;
    PyObject *segments = segment_list(&found), *groups = group_list(&found), *unsealed = unsealed_list(&found);
    unsigned long long scanned = found.scanned_bytes, durable_end = found.durable_end;
    unsigned long long log_start = found.log_start;
    recover_free(&found);
    return SHARDD_RESULT(SHARDD_RECOVERED, segments, groups, unsealed, SHARDD_NUMBER(scanned),
                         SHARDD_NUMBER(durable_end), SHARDD_NUMBER(log_start));
}

static PyObject *call_digest_file(PyObject *module, PyObject *args) {
    int fd, result;
    unsigned long long length;
    uint8_t digest[DIGEST_SIZE];
    (void)module;
    if (!PyArg_ParseTuple(args, "iK", &fd, &length)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = digest_file(fd, length, digest);
    Py_END_ALLOW_THREADS
    if (result != 0) return PyErr_SetFromErrno(PyExc_OSError);
    return PyBytes_FromStringAndSize((const char *)digest, DIGEST_SIZE);
}

PyMethodDef shardd_recover_methods[] = {
    {"recover_partition", call_recover_partition, METH_VARARGS, "Recovers a partition that needs no decision."},
    {"producers_proven_end", call_producers_proven_end, METH_VARARGS, "Where a log is cut after a power loss."},
    {"digest_file", call_digest_file, METH_VARARGS, "XXH3-128 of the first bytes of a file."},
    {NULL, NULL, 0, NULL},
};
