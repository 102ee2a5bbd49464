/* Methods of Engine about the age of messages. */
#include "binding.h"

#include "engine/engine_api.h"
#include "core/sync.h"

PyObject *shardd_call_delete_segments(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns;
    unsigned count;
    const char *trash;
    if (e == NULL || !PyArg_ParseTuple(args, "KIs", &ns, &count, &trash)) return NULL;
    owned *o = core_owned(&e->core, ns);
    if (o == NULL) return PyErr_Format(PyExc_KeyError, "partition %llu is not open here", ns);
    uint32_t deleted;
    bool busy;
    uint32_t status = partition_delete_segments(o->p, count, trash, &deleted, &busy);
    if (deleted > 0) sync_mark_dirty(o);
    return SHARDD_RESULT(SHARDD_DELETED_SEGMENTS, SHARDD_NUMBER(status), SHARDD_NUMBER(deleted), PyBool_FromLong(busy));
}
