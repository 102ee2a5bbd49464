/* Methods of Engine for the partitions of this shard: arguments in, one call of the core, result out. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>

#include "engine_api.h"

#define SYNC_FDS 256

/* The partition with that namespace or NULL with KeyError. */
static owned *find_partition(PyObject *self, unsigned long long ns)
{
    engine *e = shardd_engine_of(self);
    owned *o = e != NULL ? engine_owned(e, ns) : NULL;
    if (e != NULL && o == NULL)
        PyErr_Format(PyExc_KeyError, "partition %llu is not open here", ns);
    return o;
}

static segment_info *read_segments(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    segment_info *segments = calloc(*count + 1, sizeof *segments);
    if (segments == NULL)
        return (segment_info *)PyErr_NoMemory();
    for (size_t i = 0; i < *count; i++) {
        unsigned long long v[5];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, (Py_ssize_t)i), "KKKKK", &v[0], &v[1], &v[2], &v[3], &v[4])) {
            free(segments);
            return NULL;
        }
        segments[i] = (segment_info){v[0], v[1], v[2], v[3], v[4]};
    }
    return segments;
}

static bool load_offsets(partition *p, PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        unsigned kind, id;
        unsigned long long value;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "IIK", &kind, &id, &value))
            return false;
        if (partition_offset_load(p, (uint8_t)kind, id, value) != 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            return false;
        }
    }
    return true;
}

PyObject *shardd_call_partition_open(PyObject *self, PyObject *args)
{
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation, segment_size;
    unsigned slot, state;
    const char *directory;
    PyObject *segment_list, *offset_list;
    size_t count;
    if (e == NULL || !PyArg_ParseTuple(args, "KKIsKIO!O!", &ns, &incarnation, &slot, &directory, &segment_size, &state,
                                       &PyList_Type, &segment_list, &PyList_Type, &offset_list))
        return NULL;
    if (slot >= SHARED_STATS_SLOTS)
        return PyErr_Format(PyExc_ValueError, "slot %u is above the table", slot);
    segment_info *segments = read_segments(segment_list, &count);
    if (segments == NULL)
        return NULL;
    partition_options o = {.ns = ns,
                           .incarnation = incarnation,
                           .directory = directory,
                           .segment_size_bytes = segment_size,
                           .state = state,
                           .stats = &e->links.stats[slot],
                           .disk = &disk_system,
                           .ids = &e->ids};
    partition *p = partition_open(&o, segments, count);
    free(segments);
    if (p == NULL)
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, directory);
    int result = load_offsets(p, offset_list) ? engine_partition_add(e, p) : -1;
    if (result != 0) {
        partition_close(p);
        partition_release(p);
        if (PyErr_Occurred())
            return NULL;
        errno = -result;
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, directory);
    }
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_close(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    engine_partition_remove(e, ns);
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_flush(PyObject *self, PyObject *arg)
{
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : find_partition(self, ns);
    return o != NULL ? PyLong_FromUnsignedLong(partition_flush(o->p)) : NULL;
}

static PyObject *fd_list(const int *fds, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++)
        PyList_SET_ITEM(list, (Py_ssize_t)i, PyLong_FromLong(fds[i]));
    return list;
}

PyObject *shardd_call_partition_sync_fds(PyObject *self, PyObject *arg)
{
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : find_partition(self, ns);
    int fds[SYNC_FDS];
    if (o == NULL)
        return NULL;
    if (o->syncing)
        return PyErr_Format(PyExc_BlockingIOError, "a sync of partition %llu is running", ns);
    o->syncing = true;
    return fd_list(fds, partition_sync_begin(o->p, fds, SYNC_FDS));
}

PyObject *shardd_call_partition_sync_done(PyObject *self, PyObject *args)
{
    unsigned long long ns;
    int error;
    owned *o = PyArg_ParseTuple(args, "Ki", &ns, &error) ? find_partition(self, ns) : NULL;
    if (o == NULL)
        return NULL;
    o->syncing = false;
    partition_sync_done(o->p, error);
    Py_RETURN_NONE;
}

PyObject *shardd_call_offset_get(PyObject *self, PyObject *args)
{
    unsigned long long ns;
    unsigned kind, id;
    uint64_t value;
    owned *o = PyArg_ParseTuple(args, "KII", &ns, &kind, &id) ? find_partition(self, ns) : NULL;
    if (o == NULL)
        return NULL;
    if (!partition_offset_get(o->p, (uint8_t)kind, id, &value))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

PyObject *shardd_call_offset_delete(PyObject *self, PyObject *args)
{
    unsigned long long ns, assignment = 0;
    unsigned kind, id;
    owned *o = PyArg_ParseTuple(args, "KII|K", &ns, &kind, &id, &assignment) ? find_partition(self, ns) : NULL;
    if (o == NULL)
        return NULL;
    if (!fences_pass(&o->fences, id, assignment))
        return PyLong_FromUnsignedLong(STATUS_NOT_RESOLVED_CONSUMER);
    return PyLong_FromUnsignedLong(partition_offset_delete(o->p, (uint8_t)kind, id));
}

PyObject *shardd_call_offset_store(PyObject *self, PyObject *args)
{
    unsigned long long ns, value, assignment = 0;
    unsigned kind, id;
    owned *o = PyArg_ParseTuple(args, "KIIK|K", &ns, &kind, &id, &value, &assignment) ? find_partition(self, ns) : NULL;
    if (o == NULL)
        return NULL;
    descriptor d = {.consumer_kind = (uint8_t)kind, .consumer_id = id, .value = value, .assignment = assignment};
    return PyLong_FromUnsignedLong(execute_store(o, &d));
}

PyObject *shardd_call_flush_all(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *list = e != NULL ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list != NULL && i < e->partitions_capacity; i++) {
        owned *o = e->partitions[i];
        int fds[SYNC_FDS];
        if (o == NULL || o->syncing || !partition_is_dirty(o->p))
            continue;
        o->syncing = true;
        PyObject *more = fd_list(fds, partition_sync_begin(o->p, fds, SYNC_FDS));
        if (more == NULL || PyList_SetSlice(list, PyList_GET_SIZE(list), PyList_GET_SIZE(list), more) != 0)
            Py_CLEAR(list);
        Py_XDECREF(more);
    }
    return list;
}

PyObject *shardd_call_flush_all_done(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    int error = (int)PyLong_AsLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    for (uint32_t i = 0; i < e->partitions_capacity; i++) {
        owned *o = e->partitions[i];
        if (o == NULL || !o->syncing)
            continue;
        o->syncing = false;
        partition_sync_done(o->p, error);
    }
    Py_RETURN_NONE;
}
