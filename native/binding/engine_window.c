/* Method of Engine about the ids of messages that are compared. */
#include "binding.h"

#include "engine/engine_api.h"
#include "core/once.h"

#define ENTRY_BYTES 24 /* as in partition_load_window */

PyObject *shardd_call_set_window(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation, entries_max, age_us;
    const char *known = NULL;
    Py_ssize_t length = 0;
    if (e == NULL || !PyArg_ParseTuple(args, "KK(KK)|y#", &ns, &incarnation, &entries_max, &age_us, &known, &length))
        return NULL;
    if (entries_max > ID_WINDOW_ENTRIES_MAX || length % ENTRY_BYTES != 0 ||
        (uint64_t)length / ENTRY_BYTES > entries_max)
        return PyErr_Format(PyExc_ValueError, "no window of %llu entries", entries_max);
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    bool done = partition_set_window(o->p, &e->core.id_windows, entries_max, age_us);
    if (done && length > 0) done = partition_load_window(o->p, (const uint8_t *)known, (size_t)length / ENTRY_BYTES);
    once_changed(o);
    return PyBool_FromLong(done);
}
