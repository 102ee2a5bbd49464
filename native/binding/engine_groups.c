/* Methods of Engine about consumer groups: seats (native/src/core/seat.h) and fences (native/src/core/fence.h). */
#include "binding.h"

#include "engine/engine_api.h"

static bool fill_seat(seat *s, PyObject *partitions) {
    for (uint32_t i = 0; i < s->count; i++) {
        long long polled, committed;
        unsigned partition;
        if (!PyArg_ParseTuple(PyList_GetItem(partitions, (Py_ssize_t)i), "ILL", &partition, &polled, &committed))
            return false;
        seat_set(s, i, partition, polled, committed);
    }
    return true;
}

PyObject *shardd_call_seat_put(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection, group, generation;
    unsigned offsets_id, rotation;
    long long last_polled;
    PyObject *partitions;
    if (e == NULL || !PyArg_ParseTuple(args, "KKKIILO!", &connection, &group, &generation, &offsets_id, &rotation,
                                       &last_polled, &PyList_Type, &partitions))
        return NULL;
    seat *s = engine_seat_put(e, connection, group, (uint32_t)PyList_Size(partitions));
    if (s == NULL) Py_RETURN_FALSE;
    s->generation = generation;
    s->offsets_id = offsets_id;
    s->rotation = rotation;
    s->last_polled = last_polled;
    if (!fill_seat(s, partitions)) {
        seat_work none;
        seat_free(engine_seat_take(e, connection, group, &none));
        return NULL;
    }
    Py_RETURN_TRUE;
}

static PyObject *seat_state(const seat *s, const seat_work *under_way) {
    uint32_t polled = 0, at = 0;
    for (uint32_t i = 0; i < s->count; i++) polled += s->partitions[i].polled != SEAT_NONE;
    PyObject *marks = PyList_New(polled);
    for (uint32_t i = 0; marks != NULL && i < s->count; i++) {
        const seat_partition *p = &s->partitions[i];
        if (p->polled == SEAT_NONE) continue;
        PyObject *item = SHARDD_RESULT(SHARDD_SEAT_PARTITION, SHARDD_NUMBER(p->partition), SHARDD_SIGNED(p->polled),
                                       SHARDD_SIGNED(p->committed));
        if (item == NULL) Py_CLEAR(marks);
        else PyList_SetItem(marks, at++, item);
    }
    long long busy = under_way->seat != NULL ? (long long)s->partitions[under_way->at].partition : SEAT_NONE;
    return SHARDD_RESULT(SHARDD_SEAT_STATE, SHARDD_NUMBER(s->rotation), SHARDD_SIGNED(s->last_polled),
                         SHARDD_SIGNED(busy), PyBool_FromLong(under_way->auto_commit), marks);
}

PyObject *shardd_call_seat_take(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection, group;
    seat_work under_way;
    if (e == NULL || !PyArg_ParseTuple(args, "KK", &connection, &group)) return NULL;
    seat *s = engine_seat_take(e, connection, group, &under_way);
    if (s == NULL) Py_RETURN_NONE;
    PyObject *taken = seat_state(s, &under_way);
    seat_free(s);
    return taken;
}

PyObject *shardd_call_fence_drop(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation;
    unsigned group;
    if (e == NULL || !PyArg_ParseTuple(args, "KKI", &ns, &incarnation, &group)) return NULL;
    owned *o = core_owned(&e->core, ns);
    if (o != NULL && o->incarnation == incarnation) fences_drop(&o->fences, group);
    Py_RETURN_NONE;
}
