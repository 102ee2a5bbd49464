/* Rows of the engine's table: statistics of partitions (src/base/shared.h). */
#include "binding.h"
#include "engine/engine.h"

static const partition_stats *slot_of(const engine *e, PyObject *number) {
    unsigned long slot = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) return NULL;
    if (slot >= SHARED_STATS_SLOTS) {
        PyErr_Format(PyExc_ValueError, "slot %lu is above the table", slot);
        return NULL;
    }
    return &e->core.links.stats[slot];
}

PyObject *shardd_call_stats(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    const partition_stats *s = e != NULL ? slot_of(e, arg) : NULL;
    if (s == NULL) return NULL;
    return SHARDD_RESULT(SHARDD_STATS, SHARDD_NUMBER(s->incarnation), SHARDD_NUMBER(s->next_offset),
                         SHARDD_NUMBER(s->size_bytes), SHARDD_NUMBER(s->messages_count),
                         SHARDD_NUMBER(s->segments_count), SHARDD_NUMBER(s->durable_offset),
                         SHARDD_NUMBER(s->first_offset), SHARDD_NUMBER(s->state), SHARDD_NUMBER(s->unseen));
}

typedef struct sums {
    uint64_t segments, bytes, messages, appended, not_durable, read_only;
} sums;

/* A partition whose slot holds another incarnation is empty: one segment. */
static bool add(const engine *e, PyObject *partition, PyObject *slot_name, PyObject *incarnation_name, sums *all) {
    PyObject *slot = PyObject_GetAttr(partition, slot_name);
    PyObject *incarnation = slot != NULL ? PyObject_GetAttr(partition, incarnation_name) : NULL;
    const partition_stats *s = incarnation != NULL ? slot_of(e, slot) : NULL;
    uint64_t wanted = s != NULL ? PyLong_AsUnsignedLongLong(incarnation) : 0;
    Py_XDECREF(slot);
    Py_XDECREF(incarnation);
    if (s == NULL || PyErr_Occurred()) return false;
    bool known = s->incarnation == wanted;
    all->segments += known ? s->segments_count : 1;
    all->bytes += known ? s->size_bytes : 0;
    all->messages += known ? s->messages_count : 0;
    if (!known) return true;
    uint64_t durable = s->durable_offset, end = s->next_offset; /* in this order: neither is of the future */
    all->appended += end;
    all->not_durable += end > durable ? end - durable : 0;
    all->read_only += s->state != 0;
    return true;
}

PyObject *shardd_call_stats_sums(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    PyObject *partitions;
    Py_ssize_t first, end;
    if (e == NULL || !PyArg_ParseTuple(args, "O!nn", &PyTuple_Type, &partitions, &first, &end)) return NULL;
    if (first < 0 || end > PyTuple_Size(partitions))
        return PyErr_Format(PyExc_ValueError, "partitions %zd to %zd are not there", first, end);
    PyObject *slot = PyUnicode_InternFromString("slot"), *incarnation = PyUnicode_InternFromString("incarnation");
    bool good = slot != NULL && incarnation != NULL;
    sums all = {0};
    for (Py_ssize_t i = first; good && i < end; i++)
        good = add(e, PyTuple_GetItem(partitions, i), slot, incarnation, &all);
    Py_XDECREF(slot);
    Py_XDECREF(incarnation);
    if (!good) return NULL;
    return SHARDD_RESULT(SHARDD_STATS_SUMS, SHARDD_NUMBER(all.segments), SHARDD_NUMBER(all.bytes),
                         SHARDD_NUMBER(all.messages), SHARDD_NUMBER(all.appended), SHARDD_NUMBER(all.not_durable),
                         SHARDD_NUMBER(all.read_only));
}

/* Of the partitions [first, end) of a topic, those that are open here. */
PyObject *shardd_call_group_lag(PyObject *self, PyObject *args) {
    const engine *e = shardd_engine_of(self);
    unsigned long long ns;
    unsigned group, first, end;
    if (e == NULL || !PyArg_ParseTuple(args, "KIII", &ns, &group, &first, &end)) return NULL;
    uint64_t partitions = 0, without_offset = 0, messages = 0, since_us = UINT64_MAX;
    for (unsigned i = first; i < end; i++) {
        const owned *o = core_owned(&e->core, ns + i);
        if (o == NULL) continue;
        partition_lag lag = partition_lag_of(o->p, OFFSET_GROUP, group);
        partitions++;
        without_offset += !lag.stored;
        messages += lag.messages;
        if (lag.since_us != 0 && lag.since_us < since_us) since_us = lag.since_us;
    }
    return SHARDD_RESULT(SHARDD_GROUP_LAG, SHARDD_NUMBER(partitions), SHARDD_NUMBER(without_offset),
                         SHARDD_NUMBER(messages), SHARDD_NUMBER(since_us == UINT64_MAX ? 0 : since_us));
}
