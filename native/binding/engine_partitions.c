/* Methods of Engine for the partitions of this shard: arguments in, one call of the core, result out. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/engine_api.h"
#include "core/execute.h"
#include "base/status.h"
#include "core/sync.h"
#include "core/reads.h"

#define SYNC_FDS 256

owned *shardd_partition_at(PyObject *self, unsigned long long ns) {
    engine *e = shardd_engine_of(self);
    owned *o = e != NULL ? core_owned(&e->core, ns) : NULL;
    if (e != NULL && o == NULL) PyErr_Format(PyExc_KeyError, "partition %llu is not open here", ns);
    return o;
}

owned *shardd_partition_named(PyObject *self, unsigned long long ns, unsigned long long incarnation) {
    owned *o = shardd_partition_at(self, ns);
    if (o == NULL || o->incarnation == incarnation) return o;
    PyErr_Format(PyExc_KeyError, "partition %llu is not open here as incarnation %llu", ns, incarnation);
    return NULL;
}

static segment_info *read_segments(PyObject *list, size_t *count) {
    *count = (size_t)PyList_Size(list);
    segment_info *segments = calloc(*count + 1, sizeof *segments);
    if (segments == NULL) return (segment_info *)PyErr_NoMemory();
    for (size_t i = 0; i < *count; i++) {
        unsigned long long v[8];
        if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)i), "KKKKKKKK", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                              &v[6], &v[7])) {
            free(segments);
            return NULL;
        }
        const segment_layout *layout = segment_layout_of((uint32_t)v[6]);
        if (layout == NULL) {
            free(segments);
            return (segment_info *)PyErr_Format(PyExc_ValueError, "layout %llu is not known", v[6]);
        }
        segments[i] = (segment_info){v[0], v[1], v[2], v[3], v[4], v[5], layout, v[7]};
    }
    return segments;
}

/* (start, end, isolated) each. What finds no place is found again by whoever reads it. */
static bool withhold(partition *p, PyObject *list) {
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        unsigned long long start, end;
        int isolated;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "KKp", &start, &end, &isolated)) return false;
        partition_withhold(p, start, end, isolated);
    }
    return true;
}

PyObject *shardd_call_partition_open(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation, segment_size, durable_end, log_start = 0;
    partition_limits limits = {0};
    unsigned slot, state, level;
    const char *directory, *waiting = NULL;
    Py_ssize_t waiting_bytes = 0;
    PyObject *segment_list, *damaged_list;
    size_t count;
    if (e == NULL || !PyArg_ParseTuple(args, "KKIsKIO!IO!K|KO&y#", &ns, &incarnation, &slot, &directory, &segment_size,
                                       &state, &PyList_Type, &segment_list, &level, &PyList_Type, &damaged_list,
                                       &durable_end, &log_start, shardd_read_limits, &limits, &waiting, &waiting_bytes))
        return NULL;
    if (level > LEVEL_DURABLE) return PyErr_Format(PyExc_ValueError, "%u is no level", level);
    if (slot >= SHARED_STATS_SLOTS) return PyErr_Format(PyExc_ValueError, "slot %u is above the table", slot);
    segment_info *segments = read_segments(segment_list, &count);
    if (segments == NULL) return NULL;
    partition_options o = {.ns = ns,
                           .incarnation = incarnation,
                           .directory = directory,
                           .segment_size_bytes = segment_size,
                           .state = state,
                           .durable_end = durable_end,
                           .log_start = log_start,
                           .limits = &limits,
                           .clock = &e->core.expiry,
                           .users = &e->core.users,
                           .level = (partition_level)level,
                           .journal_messages_max = e->options.journal_messages_max,
                           .journal_bytes_max = e->options.journal_bytes_max,
                           .journals = &e->core.journals,
                           .offsets_max = e->options.consumer_offsets_max,
                           .stats = &e->core.links.stats[slot],
                           .disk = &disk_system,
                           .room = &e->core.commit.room,
                           .files = &e->core.files,
                           .producing = &e->core.producing,
                           .ids = &e->core.ids,
                           .waiting = (const index_entry *)(const void *)waiting,
                           .waiting_count = (size_t)waiting_bytes / INDEX_ENTRY_SIZE};
    partition *p = partition_open(&o, segments, count);
    free(segments);
    if (p == NULL) return PyErr_SetFromErrnoWithFilename(PyExc_OSError, directory);
    atomic_store(&e->core.links.owed[slot], 0); /* by whoever had the slot before */
    int result = withhold(p, damaged_list) ? core_partition_add(&e->core, p) : -1;
    if (result != 0) {
        partition_close(p);
        partition_release(p);
        if (PyErr_Occurred()) return NULL;
        errno = -result;
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, directory);
    }
    return Py_BuildValue("(ii)", partition_unread_offsets(p), partition_unread_producers(p));
}

PyObject *shardd_call_partition_close(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation;
    if (e == NULL || !PyArg_ParseTuple(args, "KK", &ns, &incarnation)) return NULL;
    const owned *o = core_owned(&e->core, ns);
    if (o != NULL && o->incarnation == incarnation) core_partition_remove(&e->core, ns);
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_segments(PyObject *self, PyObject *arg) {
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : shardd_partition_at(self, ns);
    if (o == NULL) return NULL;
    uint32_t count = partition_segment_count(o->p), hidden = count > 0 ? count - partition_segments(o->p) : 0;
    PyObject *list = PyList_New((Py_ssize_t)(count - hidden));
    segment_info s;
    for (uint32_t i = hidden; list != NULL && partition_segment(o->p, i, &s); i++) {
        PyObject *item = shardd_segment_row(&s);
        if (item == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, (Py_ssize_t)(i - hidden), item);
    }
    return list;
}

PyObject *shardd_call_partition_surveyed(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, segment, first_timestamp;
    PyObject *ranges;
    if (!PyArg_ParseTuple(args, "KKKKO!", &ns, &incarnation, &segment, &first_timestamp, &PyList_Type, &ranges))
        return NULL;
    owned *o = shardd_partition_at(self, ns);
    if (o == NULL) return NULL;
    if (o->incarnation == incarnation) {
        if (first_timestamp != 0) partition_surveyed(o->p, segment, first_timestamp);
        if (!withhold(o->p, ranges)) return NULL;
    }
    reads_surveyed(o, segment);
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_change_layout(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, start;
    unsigned bits;
    if (!PyArg_ParseTuple(args, "KKKI", &ns, &incarnation, &start, &bits)) return NULL;
    owned *o = shardd_partition_at(self, ns);
    const segment_layout *layout = segment_layout_of(bits);
    if (o == NULL) return NULL;
    if (layout == NULL) return PyErr_Format(PyExc_ValueError, "layout %u is not known", bits);
    return PyBool_FromLong(o->incarnation == incarnation && partition_change_layout(o->p, start, layout));
}

PyObject *shardd_call_partition_damage(PyObject *self, PyObject *arg) {
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : shardd_partition_at(self, ns);
    if (o == NULL) return NULL;
    PyObject *list = PyList_New(0);
    const damaged_range *r;
    for (uint64_t at = 0; list != NULL && (r = partition_damage_from(o->p, at)) != NULL; at = r->end) {
        PyObject *item = SHARDD_RESULT(SHARDD_WITHHELD_RANGE, SHARDD_NUMBER(r->start), SHARDD_NUMBER(r->end),
                                       PyBool_FromLong(r->isolated));
        if (item == NULL || PyList_Append(list, item) != 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyObject *shardd_call_partition_flush(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    if (!PyArg_ParseTuple(args, "KK", &ns, &incarnation)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    return o != NULL ? PyLong_FromUnsignedLong(partition_flush(o->p)) : NULL;
}

PyObject *shardd_call_partition_sync_lost(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation;
    int error;
    if (!PyArg_ParseTuple(args, "KKi", &ns, &incarnation, &error)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    sync_lost(o, error);
    Py_RETURN_NONE;
}

static PyObject *fd_list(const int *fds, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) PyList_SetItem(list, (Py_ssize_t)i, PyLong_FromLong(fds[i]));
    return list;
}

PyObject *shardd_call_partition_sync(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, token;
    if (!PyArg_ParseTuple(args, "KKK", &ns, &incarnation, &token)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    if (!sync_report(o, token)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_set_level(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns, incarnation;
    unsigned level;
    if (e == NULL || !PyArg_ParseTuple(args, "KKI", &ns, &incarnation, &level)) return NULL;
    if (level > LEVEL_DURABLE) return PyErr_Format(PyExc_ValueError, "%u is no level", level);
    if (shardd_partition_named(self, ns, incarnation) == NULL) return NULL;
    core_partition_set_level(&e->core, ns, (partition_level)level);
    Py_RETURN_NONE;
}

PyObject *shardd_call_partition_is_durable(PyObject *self, PyObject *arg) {
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    owned *o = PyErr_Occurred() ? NULL : shardd_partition_at(self, ns);
    return o != NULL ? PyBool_FromLong(partition_level_of(o->p) == LEVEL_DURABLE) : NULL;
}

PyObject *shardd_call_offset_get(PyObject *self, PyObject *args) {
    unsigned long long ns;
    unsigned kind, id;
    uint64_t value;
    owned *o = PyArg_ParseTuple(args, "KII", &ns, &kind, &id) ? shardd_partition_at(self, ns) : NULL;
    if (o == NULL) return NULL;
    if (partition_offsets_known(o->p) != 0) {
        errno = partition_unread_offsets(o->p);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    bool stored = partition_offset_read(o->p, (uint8_t)kind, id, &value);
    if (partition_is_dirty(o->p)) sync_mark_dirty(o); /* that it is used may have been written */
    if (!stored) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

static void add_unused(void *context, const offsets_half *entry) {
    PyObject **list = context;
    if (*list == NULL) return; /* no memory */
    PyObject *row = SHARDD_RESULT(SHARDD_UNUSED_OFFSET, SHARDD_NUMBER(entry->kind), SHARDD_NUMBER(entry->id),
                                  SHARDD_NUMBER(entry->value), SHARDD_NUMBER(entry->use.used_us),
                                  SHARDD_NUMBER(entry->use.owner), SHARDD_NUMBER(entry->use.name));
    if (row == NULL || PyList_Append(*list, row) != 0) Py_CLEAR(*list);
    Py_XDECREF(row);
}

PyObject *shardd_call_offsets_unused(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, age_us;
    unsigned from, count;
    uint32_t next = 0;
    if (!PyArg_ParseTuple(args, "KKIIK", &ns, &incarnation, &from, &count, &age_us)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    PyObject *list = o != NULL ? PyList_New(0) : NULL;
    if (list == NULL) return NULL;
    uint32_t status = partition_offsets_unused(o->p, from, count, age_us, &next, add_unused, &list);
    if (list == NULL) return NULL;
    return SHARDD_RESULT(SHARDD_UNUSED_PAGE, SHARDD_NUMBER(status), SHARDD_NUMBER(next), list);
}

PyObject *shardd_call_offset_delete(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, assignment = 0;
    unsigned kind, id;
    if (!PyArg_ParseTuple(args, "KKII|K", &ns, &incarnation, &kind, &id, &assignment)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    if (!fences_pass(&o->fences, id, assignment)) return PyLong_FromUnsignedLong(STATUS_NOT_RESOLVED_CONSUMER);
    uint32_t status = partition_offset_delete(o->p, (uint8_t)kind, id);
    sync_mark_dirty(o);
    return PyLong_FromUnsignedLong(status);
}

PyObject *shardd_call_offset_store(PyObject *self, PyObject *args) {
    unsigned long long ns, incarnation, value, assignment = 0, user = 0;
    unsigned kind, id;
    if (!PyArg_ParseTuple(args, "KKIIK|KK", &ns, &incarnation, &kind, &id, &value, &assignment, &user)) return NULL;
    owned *o = shardd_partition_named(self, ns, incarnation);
    if (o == NULL) return NULL;
    partition_request what = {.kind = REQUEST_STORE,
                              .consumer_kind = (uint8_t)kind,
                              .consumer_id = id,
                              .value = value,
                              .assignment = assignment,
                              .by_user = {.owner = user}};
    return PyLong_FromUnsignedLong(execute_store(o, &what));
}

PyObject *shardd_call_flush_all(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *list = e != NULL ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list != NULL && i < e->core.partitions.capacity; i++) {
        owned *o = e->core.partitions.slots[i];
        int fds[SYNC_FDS];
        if (o == NULL || o->sync.waits || !partition_is_dirty(o->p)) continue;
        PyObject *more = fd_list(fds, sync_begin_by_caller(o, fds, SYNC_FDS));
        if (more == NULL || PyList_SetSlice(list, PyList_Size(list), PyList_Size(list), more) != 0) Py_CLEAR(list);
        Py_XDECREF(more);
    }
    return list;
}

PyObject *shardd_call_flush_all_done(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    int error = (int)PyLong_AsLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    for (uint32_t i = 0; i < e->core.partitions.capacity; i++) {
        owned *o = e->core.partitions.slots[i];
        if (o != NULL && o->sync.by_caller) sync_end_by_caller(o, error);
    }
    Py_RETURN_NONE;
}
