/* Methods of Engine about the age of messages, and what partitions take of their producers. */
#include "binding.h"

#include "engine/engine_api.h"
#include "base/clock.h"
#include "core/commit.h"
#include "core/once.h"
#include "core/send_limits.h"
#include "core/sync.h"

/* What is in `args` is a namespace and an incarnation. */
static owned *partition_of(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    return PyArg_ParseTuple(args, "KK", &ns, &incarnation) ? shardd_partition_named(self, ns, incarnation) : NULL;
}

/* Files have gone, or the manifest knows more: the next sync brings it to the device, the sealer hears of a roll. */
static void changed(owned *o) {
    if (partition_is_dirty(o->p)) sync_mark_dirty(o);
    commit_report_rolls(o->core, o);
}

PyObject *shardd_call_delete_segments(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    unsigned count;
    const char *trash;
    if (!PyArg_ParseTuple(args, "KKIs", &ns, &incarnation, &count, &trash)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    uint32_t deleted;
    bool busy;
    uint32_t status = partition_delete_segments(o->p, count, trash, &deleted, &busy);
    if (deleted > 0) sync_mark_dirty(o);
    return SHARDD_RESULT(SHARDD_DELETED_SEGMENTS, SHARDD_NUMBER(status), SHARDD_NUMBER(deleted), PyBool_FromLong(busy));
}

int shardd_read_limits(PyObject *object, void *limits) {
    unsigned long long v[7];
    if (!PyArg_ParseTuple(object, "KKKKKKK", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6])) return 0;
    *(partition_limits *)limits = (partition_limits){v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
    return 1;
}

PyObject *shardd_call_set_limits(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    partition_limits limits;
    if (!PyArg_ParseTuple(args, "KKO&", &ns, &incarnation, shardd_read_limits, &limits)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    partition_set_limits(o->p, &limits);
    Py_RETURN_NONE;
}

static send_limits *read_send_limits(const engine *e, const send_limits *values, PyObject *places) {
    Py_ssize_t count = PyList_Size(places);
    send_limits *l = send_limits_new(values, (uint32_t)count);
    if (l == NULL) return (send_limits *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned slot;
        unsigned long long incarnation;
        if (PyArg_ParseTuple(PyList_GetItem(places, i), "IK", &slot, &incarnation) && slot < SHARED_STATS_SLOTS) {
            l->places[i] = (send_place){&e->core.links.stats[slot], incarnation, 0};
            continue;
        }
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "slot %u is above the table", slot);
        send_limits_release(l);
        return NULL;
    }
    return l;
}

PyObject *shardd_call_set_send_limits(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    PyObject *own, *places;
    unsigned long long v[4];
    if (e == NULL ||
        !PyArg_ParseTuple(args, "O!(KKKK)O!", &PyList_Type, &own, &v[0], &v[1], &v[2], &v[3], &PyList_Type, &places))
        return NULL;
    send_limits values = {
        .message_bytes_max = v[0], .messages_max = v[1], .bytes_max = v[2], .partition_bytes_max = v[3]};
    send_limits *l = NULL;
    if ((v[0] | v[1] | v[2] | v[3]) != 0 && (l = read_send_limits(e, &values, places)) == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(own); i++) {
        unsigned long long ns, incarnation;
        unsigned place;
        if (!PyArg_ParseTuple(PyList_GetItem(own, i), "KKI", &ns, &incarnation, &place)) break;
        owned *o = core_owned(&e->core, ns);
        if (o == NULL || o->incarnation != incarnation || (l != NULL && place >= l->count))
            continue; /* closed meanwhile */
        send_limits_release(o->send_limits);
        o->send_limits = send_limits_retain(l);
        o->send_place = place;
        once_changed(o);
    }
    send_limits_release(l);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

PyObject *shardd_call_set_readonly(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    int readonly;
    if (!PyArg_ParseTuple(args, "KKp", &ns, &incarnation, &readonly)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    o->readonly = readonly != 0;
    once_changed(o);
    Py_RETURN_NONE;
}

PyObject *shardd_call_set_paused(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    int paused;
    if (!PyArg_ParseTuple(args, "KKp", &ns, &incarnation, &paused)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    o->paused = paused != 0;
    once_changed(o);
    Py_RETURN_NONE;
}

PyObject *shardd_call_clean(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    const char *trash;
    partition_cleaned done;
    if (!PyArg_ParseTuple(args, "KKs", &ns, &incarnation, &trash)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    uint32_t status = partition_clean(o->p, clock_monotonic_us(), trash, &done);
    if (done.unsynced) sync_early(o);
    changed(o);
    return SHARDD_RESULT(SHARDD_CLEANED, SHARDD_NUMBER(status), SHARDD_NUMBER(done.removed),
                         PyBool_FromLong(done.pending), PyBool_FromLong(done.held), SHARDD_NUMBER(done.leased_bytes),
                         PyBool_FromLong(done.overtaken), PyBool_FromLong(done.ahead));
}

PyObject *shardd_call_lease(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, offset;
    if (!PyArg_ParseTuple(args, "KKK", &ns, &incarnation, &offset)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    partition_lease(o->p, offset);
    Py_RETURN_NONE;
}

PyObject *shardd_call_oldest_segment(PyObject *self, PyObject *args) {
    owned *o = partition_of(self, args);
    partition_oldest oldest;
    if (o == NULL) return NULL;
    bool droppable = partition_oldest_segment(o->p, &oldest);
    return SHARDD_RESULT(SHARDD_OLDEST, SHARDD_NUMBER(oldest.first_timestamp), SHARDD_NUMBER(oldest.bytes),
                         PyBool_FromLong(droppable), PyBool_FromLong(oldest.only_active),
                         PyBool_FromLong(oldest.waits));
}

PyObject *shardd_call_drop_oldest(PyObject *self, PyObject *args) {
    owned *o = partition_of(self, args);
    return o != NULL ? PyLong_FromUnsignedLongLong(partition_drop_oldest(o->p)) : NULL;
}

PyObject *shardd_call_roll_early(PyObject *self, PyObject *args) {
    owned *o = partition_of(self, args);
    if (o == NULL) return NULL;
    uint32_t status = partition_roll_early(o->p);
    changed(o);
    return PyLong_FromUnsignedLong(status);
}

PyObject *shardd_call_slowest(PyObject *self, PyObject *arg) {
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : shardd_partition_at(self, ns);
    if (o == NULL) return NULL;
    uint8_t kind;
    uint32_t id;
    uint64_t value;
    if (!partition_slowest(o->p, &kind, &id, &value)) Py_RETURN_NONE;
    return SHARDD_RESULT(SHARDD_STORED_OFFSET, SHARDD_NUMBER(kind), SHARDD_NUMBER(id), SHARDD_NUMBER(value));
}
