/* Methods of Engine about producers whose batches are stored once. */
#include "binding.h"

#include "engine/engine_api.h"

#include <string.h>

PyObject *shardd_call_producers_begin(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long barrier, known;
    const char *boot;
    Py_ssize_t length;
    if (e == NULL || !PyArg_ParseTuple(args, "y#KK", &boot, &length, &barrier, &known)) return NULL;
    producer_memory *m = &e->core.producing;
    if (length != sizeof m->boot) return PyErr_Format(PyExc_ValueError, "a boot of %zd bytes", length);
    memcpy(m->boot, boot, sizeof m->boot);
    m->barrier = barrier;
    m->known_last = known;
    Py_RETURN_NONE;
}

PyObject *shardd_call_producer_put(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long id, begun;
    unsigned user_id, epoch;
    if (e == NULL || !PyArg_ParseTuple(args, "KIIK", &id, &user_id, &epoch, &begun)) return NULL;
    if (id == 0) return PyErr_Format(PyExc_ValueError, "no producer has the id 0");
    known_producer known = {.id = id, .begun = begun, .user_id = user_id, .epoch = epoch};
    if (!producer_table_put(&e->core.known_producers, &known)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *shardd_call_producer_drop(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long id = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    producer_table_drop(&e->core.known_producers, id);
    Py_RETURN_NONE;
}
