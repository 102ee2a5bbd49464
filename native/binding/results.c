/* Results with named fields: struct sequences, which compare and unpack as the tuples that they are. */
#include "binding.h"

#define FIELD(name) {#name, NULL}

static PyStructSequence_Field stats_fields[] = {
    FIELD(incarnation),    FIELD(next_offset),  FIELD(size_bytes), FIELD(messages_count), FIELD(segments_count),
    FIELD(durable_offset), FIELD(first_offset), FIELD(state),      FIELD(unseen),         {NULL, NULL}};
static PyStructSequence_Field segment_fields[] = {
    FIELD(start_offset),   FIELD(log_bytes), FIELD(records), FIELD(first_timestamp),
    FIELD(last_timestamp), FIELD(absent),    {NULL, NULL}};
static PyStructSequence_Field scan_fields[] = {
    FIELD(valid_bytes),    FIELD(records), FIELD(next_offset), FIELD(first_timestamp),
    FIELD(last_timestamp), FIELD(fault),   {NULL, NULL}};
static PyStructSequence_Field indexed_fields[] = {FIELD(valid_bytes),     FIELD(records),        FIELD(next_offset),
                                                  FIELD(first_timestamp), FIELD(last_timestamp), FIELD(fault),
                                                  FIELD(entries),         {NULL, NULL}};

static PyStructSequence_Desc descriptions[SHARDD_RESULTS] = {
    [SHARDD_STATS] = {"shardd.engine._native.PartitionStats", "A slot of the shared statistics.", stats_fields, 9},
    [SHARDD_SEGMENT] = {"shardd.engine._native.SegmentInfo", "A segment of a partition.", segment_fields, 6},
    [SHARDD_SCAN] = {"shardd.engine._native.Scan", "What a scan of records found.", scan_fields, 6},
    [SHARDD_INDEXED_SCAN] = {"shardd.engine._native.IndexedScan", "The same and the index.", indexed_fields, 7},
};
static PyTypeObject *types[SHARDD_RESULTS];

int shardd_results_add(PyObject *module) {
    for (int i = 0; i < SHARDD_RESULTS; i++) {
        if (types[i] == NULL) types[i] = PyStructSequence_NewType(&descriptions[i]);
        const char *name = strrchr(descriptions[i].name, '.') + 1;
        if (types[i] == NULL || PyModule_AddObjectRef(module, name, (PyObject *)types[i]) != 0) return -1;
    }
    return 0;
}

PyObject *shardd_result(shardd_result_type type, const unsigned long long *numbers, int count, PyObject *last) {
    PyObject *result = PyStructSequence_New(types[type]);
    for (int i = 0; result != NULL && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL) Py_CLEAR(result);
        else PyStructSequence_SET_ITEM(result, i, number);
    }
    if (result != NULL && last != NULL) PyStructSequence_SET_ITEM(result, count, last);
    else Py_XDECREF(last);
    return result;
}
