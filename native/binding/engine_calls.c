/* Methods of Engine that decide nothing: arguments in, one call of the core, result out. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_api.h"
#include "hash.h"

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

static PyObject *call_listen(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    long fd = PyLong_AsLong(arg);
    if (e == NULL || (fd == -1 && PyErr_Occurred()))
        return NULL;
    engine_listen(e, (int)fd);
    Py_RETURN_NONE;
}

static PyObject *call_stop_listening(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    if (e == NULL)
        return NULL;
    engine_stop_listening(e);
    Py_RETURN_NONE;
}

static PyObject *call_reply(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"connection", "status", "payload", "close", NULL};
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned status;
    Py_buffer payload = {0};
    int close = 0;
    if (e == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "KI|y*p", names, &connection, &status, &payload, &close))
        return NULL;
    engine_reply(e, connection, status, payload.buf, (size_t)payload.len, close != 0);
    if (payload.obj != NULL)
        PyBuffer_Release(&payload);
    Py_RETURN_NONE;
}

static PyObject *call_resume(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long long connection = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    engine_resume(e, connection);
    Py_RETURN_NONE;
}

static PyObject *call_execute_poll(PyObject *self, PyObject *args)
{
    engine *e = shardd_engine_of(self);
    unsigned long long connection, ns, incarnation, value;
    unsigned owner, strategy, count, group;
    int auto_commit;
    if (e == NULL || !PyArg_ParseTuple(args, "KIKKIKIIp", &connection, &owner, &ns, &incarnation, &strategy,
                                       &value, &count, &group, &auto_commit))
        return NULL;
    descriptor d = {.operation = LINK_POLL, .ns = ns, .incarnation = incarnation, .strategy = (uint8_t)strategy,
                    .value = value, .count = count, .consumer_kind = OFFSET_GROUP, .consumer_id = group,
                    .flags = auto_commit ? LINK_FLAG_AUTO_COMMIT : 0};
    engine_execute_poll(e, connection, owner, &d);
    Py_RETURN_NONE;
}

static PyObject *call_close_connection(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"connection", "status", NULL};
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned status = 0;
    if (e == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "K|I", names, &connection, &status))
        return NULL;
    engine_close_connection(e, connection, status);
    Py_RETURN_NONE;
}

static PyObject *call_close_all(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long status = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    engine_close_all(e, (uint32_t)status);
    Py_RETURN_NONE;
}

static PyObject *call_connections(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    return e != NULL ? PyLong_FromUnsignedLong(e->conns_count) : NULL;
}

static PyObject *call_stale_connections(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    long long age_ms = PyLong_AsLongLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    int64_t latest_us = clock_monotonic_us() - age_ms * 1000;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < e->conns_capacity; i++) {
        conn *c = e->conns[i];
        if (c == NULL || c->closing || c->heartbeat_us >= latest_us)
            continue;
        PyObject *id = PyLong_FromUnsignedLongLong(conn_id(c));
        if (id == NULL || PyList_Append(list, id) != 0)
            Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

static PyObject *call_set_session(PyObject *self, PyObject *args)
{
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned user_id;
    int authenticated;
    if (e == NULL || !PyArg_ParseTuple(args, "KIp", &connection, &user_id, &authenticated))
        return NULL;
    conn *c = conn_find(e, connection);
    if (c != NULL) {
        c->user_id = user_id;
        c->authenticated = authenticated != 0;
    }
    Py_RETURN_NONE;
}

static PyObject *call_move(PyObject *self, PyObject *args)
{
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned shard;
    Py_buffer session;
    if (e == NULL || !PyArg_ParseTuple(args, "KIy*", &connection, &shard, &session))
        return NULL;
    bool moved = engine_move(e, connection, shard, session.buf, (size_t)session.len);
    PyBuffer_Release(&session);
    return PyBool_FromLong(moved);
}

static PyObject *call_routes_invalidate(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    if (e == NULL)
        return NULL;
    routes_clear(&e->routes, drop_route_partition);
    Py_RETURN_NONE;
}

static bool fill_route(engine *e, route *r, PyObject *partitions)
{
    for (uint32_t i = 0; i < r->partitions_count; i++) {
        unsigned long long ns, incarnation;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(partitions, (Py_ssize_t)i), "KK", &ns, &incarnation))
            return false;
        r->partitions[i] = (route_partition){.ns = ns, .incarnation = incarnation, .owner = hash_owner(ns, e->links.shards)};
    }
    return true;
}

static PyObject *call_route_put(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"user_id", "stream_identifier", "topic_identifier", "can_send", "can_poll", "counter", "partitions", NULL};
    engine *e = shardd_engine_of(self);
    unsigned user_id, counter;
    const char *stream, *topic;
    Py_ssize_t stream_length, topic_length;
    int can_send, can_poll;
    PyObject *partitions;
    if (e == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "Iy#y#$ppIO!", names, &user_id, &stream, &stream_length, &topic,
                                                  &topic_length, &can_send, &can_poll, &counter, &PyList_Type, &partitions))
        return NULL;
    uint8_t key[ROUTE_KEY_MAX];
    if (stream_length + topic_length > (Py_ssize_t)sizeof key)
        return PyErr_Format(PyExc_ValueError, "identifiers of %zd bytes", stream_length + topic_length);
    memcpy(key, stream, (size_t)stream_length);
    memcpy(key + stream_length, topic, (size_t)topic_length);
    route *r = routes_put(&e->routes, user_id, key, (uint32_t)(stream_length + topic_length), (uint32_t)PyList_GET_SIZE(partitions),
                          drop_route_partition);
    if (r == NULL)
        return PyErr_NoMemory();
    r->can_send = can_send != 0;
    r->can_poll = can_poll != 0;
    r->counter = counter;
    if (!fill_route(e, r, partitions)) {
        routes_clear(&e->routes, drop_route_partition);
        return NULL;
    }
    Py_RETURN_NONE;
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

static PyObject *call_partition_open(PyObject *self, PyObject *args)
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
    partition_options o = {.ns = ns, .incarnation = incarnation, .directory = directory, .segment_size_bytes = segment_size,
                           .state = state, .stats = &e->links.stats[slot], .disk = &disk_system, .ids = &e->ids};
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

static PyObject *call_partition_close(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    engine_partition_remove(e, ns);
    Py_RETURN_NONE;
}

static PyObject *call_partition_flush(PyObject *self, PyObject *arg)
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

static PyObject *call_partition_sync_fds(PyObject *self, PyObject *arg)
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

static PyObject *call_partition_sync_done(PyObject *self, PyObject *args)
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

static PyObject *call_offset_get(PyObject *self, PyObject *args)
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

static PyObject *call_offset_delete(PyObject *self, PyObject *args)
{
    unsigned long long ns;
    unsigned kind, id;
    owned *o = PyArg_ParseTuple(args, "KII", &ns, &kind, &id) ? find_partition(self, ns) : NULL;
    return o != NULL ? PyLong_FromUnsignedLong(partition_offset_delete(o->p, (uint8_t)kind, id)) : NULL;
}

static PyObject *call_offset_store(PyObject *self, PyObject *args)
{
    unsigned long long ns, value;
    unsigned kind, id;
    owned *o = PyArg_ParseTuple(args, "KIIK", &ns, &kind, &id, &value) ? find_partition(self, ns) : NULL;
    if (o == NULL)
        return NULL;
    uint32_t status = partition_offset_store(o->p, (uint8_t)kind, id, value);
    sync_mark_dirty(o);
    return PyLong_FromUnsignedLong(status);
}

static PyObject *call_stats(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long slot = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    if (slot >= SHARED_STATS_SLOTS)
        return PyErr_Format(PyExc_ValueError, "slot %lu is above the table", slot);
    const partition_stats *s = &e->links.stats[slot];
    return Py_BuildValue("KKKKKKKI", (unsigned long long)s->incarnation, (unsigned long long)s->next_offset,
                         (unsigned long long)s->size_bytes, (unsigned long long)s->messages_count,
                         (unsigned long long)s->segments_count, (unsigned long long)s->durable_offset,
                         (unsigned long long)s->first_offset, (unsigned)s->state);
}

static PyObject *call_counter_reset(PyObject *self, PyObject *arg)
{
    engine *e = shardd_engine_of(self);
    unsigned long counter = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    atomic_store(&e->links.counters[counter % SHARED_COUNTERS], 0);
    Py_RETURN_NONE;
}

static PyObject *peer_call(PyObject *self, PyObject *arg, void (*call)(engine *, uint32_t))
{
    engine *e = shardd_engine_of(self);
    unsigned long shard = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred())
        return NULL;
    if (shard >= e->links.shards || shard == e->links.shard)
        return PyErr_Format(PyExc_ValueError, "shard %lu is no peer", shard);
    call(e, (uint32_t)shard);
    Py_RETURN_NONE;
}

static PyObject *call_peer_down(PyObject *self, PyObject *arg) { return peer_call(self, arg, forward_peer_down); }
static PyObject *call_peer_up(PyObject *self, PyObject *arg) { return peer_call(self, arg, forward_peer_up); }

#define COUNTER(name) {#name, offsetof(engine_counters, name)}
static const struct {
    const char *name;
    size_t offset;
} counter_fields[] = {
    COUNTER(accepted), COUNTER(closed), COUNTER(refused_connections), COUNTER(frames), COUNTER(sends), COUNTER(polls),
    COUNTER(stores), COUNTER(messages_in), COUNTER(messages_out), COUNTER(bytes_in), COUNTER(bytes_out), COUNTER(forwarded),
    COUNTER(served_for_peers), COUNTER(moved_out), COUNTER(moved_in), COUNTER(commits), COUNTER(append_calls), COUNTER(syncs),
    COUNTER(sync_errors), COUNTER(turns), COUNTER(python_events), COUNTER(memory_waits), COUNTER(buffer_starved),
    COUNTER(timeouts), COUNTER(damaged), COUNTER(reads_cached), COUNTER(reads_ring),
};

static bool put_counter(PyObject *result, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    bool good = number != NULL && PyDict_SetItemString(result, name, number) == 0;
    Py_XDECREF(number);
    return good;
}

static PyObject *call_counters(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *result = e != NULL ? PyDict_New() : NULL;
    bool good = result != NULL;
    for (size_t i = 0; good && i < sizeof counter_fields / sizeof counter_fields[0]; i++)
        good = put_counter(result, counter_fields[i].name,
                           *(const uint64_t *)(const void *)((const char *)&e->counters + counter_fields[i].offset));
    good = good && put_counter(result, "connections", e->conns_count) && put_counter(result, "pool_used_bytes", pool_used(e->pool)) &&
           put_counter(result, "pool_capacity_bytes", pool_capacity(e->pool)) &&
           put_counter(result, "pool_resident_bytes", pool_resident(e->pool)) && put_counter(result, "ring_enters", e->ring.enters) &&
           put_counter(result, "routes", e->routes.count) && put_counter(result, "partitions", e->partitions_used);
    if (!good)
        Py_CLEAR(result);
    return result;
}

static PyObject *call_flush_all(PyObject *self, PyObject *unused)
{
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *list = e != NULL ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list != NULL && i < e->partitions_capacity; i++) {
        owned *o = e->partitions[i];
        int fds[SYNC_FDS];
        if (o == NULL || !partition_is_dirty(o->p))
            continue;
        PyObject *more = fd_list(fds, partition_sync_begin(o->p, fds, SYNC_FDS));
        if (more == NULL || PyList_SetSlice(list, PyList_GET_SIZE(list), PyList_GET_SIZE(list), more) != 0)
            Py_CLEAR(list);
        Py_XDECREF(more);
    }
    return list;
}

#define WITH_KEYWORDS(call) (PyCFunction)(void (*)(void)) call
PyMethodDef shardd_engine_methods[] = {
    {"turn", shardd_call_turn, METH_VARARGS, "Works until an event for Python, readiness or the timeout."},
    {"close", shardd_call_close, METH_NOARGS, "Closes everything."},
    {"listen", call_listen, METH_O, "Accepts connections from now on."},
    {"stop_listening", call_stop_listening, METH_NOARGS, "Accepts no more connections."},
    {"reply", WITH_KEYWORDS(call_reply), METH_VARARGS | METH_KEYWORDS, "Answers the request that Python holds."},
    {"resume", call_resume, METH_O, "Executes the held frame again."},
    {"execute_poll", call_execute_poll, METH_VARARGS, "Executes the poll that Python holds as a consumer group."},
    {"close_connection", WITH_KEYWORDS(call_close_connection), METH_VARARGS | METH_KEYWORDS, "Closes one connection."},
    {"close_all", call_close_all, METH_O, "Every connection gets this status when idle, and is closed."},
    {"connections", call_connections, METH_NOARGS, "Open connections."},
    {"stale_connections", call_stale_connections, METH_O, "Connections without a PING for so many milliseconds."},
    {"set_session", call_set_session, METH_VARARGS, "User of a connection."},
    {"move", call_move, METH_VARARGS, "Hands the socket to another shard."},
    {"routes_invalidate", call_routes_invalidate, METH_NOARGS, "Empties the route table."},
    {"route_put", WITH_KEYWORDS(call_route_put), METH_VARARGS | METH_KEYWORDS, "Adds a decision to the route table."},
    {"partition_open", call_partition_open, METH_VARARGS, "Opens a partition that this shard owns."},
    {"partition_close", call_partition_close, METH_O, "Closes a partition; unknown ones are no error."},
    {"partition_flush", call_partition_flush, METH_O, "Writes waiting index entries; status."},
    {"partition_delete_segments", shardd_call_delete_segments, METH_VARARGS, "Takes the oldest segments away."},
    {"partition_sync_fds", call_partition_sync_fds, METH_O, "Starts a sync: descriptors to fdatasync and close."},
    {"partition_sync_done", call_partition_sync_done, METH_VARARGS, "Ends that sync with an errno."},
    {"offset_get", call_offset_get, METH_VARARGS, "Stored offset or None."},
    {"offset_delete", call_offset_delete, METH_VARARGS, "Deletes a stored offset; status."},
    {"offset_store", call_offset_store, METH_VARARGS, "Stores an offset; status."},
    {"stats", call_stats, METH_O, "Statistics slot as a tuple."},
    {"counter_reset", call_counter_reset, METH_O, "Sets a balanced counter to 0."},
    {"peer_down", call_peer_down, METH_O, "A peer died."},
    {"peer_up", call_peer_up, METH_O, "A peer serves again."},
    {"counters", call_counters, METH_NOARGS, "Engine counters."},
    {"flush_all", call_flush_all, METH_NOARGS, "Flushes all; descriptors to fdatasync and close."},
    {NULL, NULL, 0, NULL},
};
