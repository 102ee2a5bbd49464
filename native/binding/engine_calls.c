/* Methods of Engine that decide nothing: arguments in, one call of the core, result out. */
#include "binding.h"

#include <errno.h>

#include "engine/engine_api.h"
#include "base/clock.h"

static PyObject *call_listen(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    int fd;
    unsigned kind = LISTENER_TCP;
    if (e == NULL || !PyArg_ParseTuple(args, "i|I", &fd, &kind)) return NULL;
    if (kind >= LISTENER_KINDS) return PyErr_Format(PyExc_ValueError, "there is no listener of this kind");
    engine_listen(e, kind, fd);
    Py_RETURN_NONE;
}

static PyObject *call_stop_listening(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    if (e == NULL) return NULL;
    engine_stop_listening(e);
    Py_RETURN_NONE;
}

static PyObject *call_reply(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"connection", "status", "payload", "close", NULL};
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned status;
    Py_buffer payload = {0};
    int close = 0;
    if (e == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "KI|y*p", names, &connection, &status, &payload, &close))
        return NULL;
    engine_reply(e, connection, status, payload.buf, (size_t)payload.len, close != 0);
    if (payload.obj != NULL) PyBuffer_Release(&payload);
    Py_RETURN_NONE;
}

static PyObject *call_resume(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    engine_resume(e, connection);
    Py_RETURN_NONE;
}

static PyObject *call_execute_poll(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection, ns, incarnation, value, assignment, user;
    unsigned owner, strategy, count, group;
    int auto_commit;
    if (e == NULL || !PyArg_ParseTuple(args, "KIKKIKIIKKp", &connection, &owner, &ns, &incarnation, &strategy, &value,
                                       &count, &group, &assignment, &user, &auto_commit))
        return NULL;
    partition_request what = {.kind = REQUEST_POLL,
                              .ns = ns,
                              .incarnation = incarnation,
                              .strategy = (uint8_t)strategy,
                              .value = value,
                              .count = count,
                              .consumer_kind = OFFSET_GROUP,
                              .consumer_id = group,
                              .assignment = assignment,
                              .by_user = {.owner = user},
                              .auto_commit = auto_commit != 0};
    engine_execute_poll(e, connection, owner, &what);
    Py_RETURN_NONE;
}

static PyObject *call_close_connection(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"connection", "status", NULL};
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned status = 0;
    if (e == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "K|I", names, &connection, &status)) return NULL;
    engine_close_connection(e, connection, status);
    Py_RETURN_NONE;
}

static PyObject *call_speak(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned char number;
    if (e == NULL || !PyArg_ParseTuple(args, "Kb", &connection, &number)) return NULL;
    if (!engine_speak(e, connection, number)) return PyErr_Format(PyExc_ValueError, "%d is no dialect", number);
    Py_RETURN_NONE;
}

static PyObject *call_begin_session(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection, session;
    const char *memory;
    Py_ssize_t length;
    if (e == NULL || !PyArg_ParseTuple(args, "KKy#", &connection, &session, &memory, &length)) return NULL;
    if (!engine_begin_session(e, connection, session, (const uint8_t *)memory, (size_t)length))
        return PyErr_Format(PyExc_ValueError, "these bytes are no memory of a session");
    Py_RETURN_NONE;
}

static PyObject *call_session_memory(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection = PyLong_AsUnsignedLongLong(arg);
    uint8_t bytes[IGGY09_MEMORY_MAX];
    if (e == NULL || PyErr_Occurred()) return NULL;
    return SHARDD_BYTES(bytes, engine_session_memory(e, connection, bytes));
}

static PyObject *call_close_all(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long status = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    engine_close_all(e, (uint32_t)status);
    Py_RETURN_NONE;
}

static PyObject *call_connections(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    return e != NULL ? PyLong_FromUnsignedLong(e->net.conns.count) : NULL;
}

static PyObject *call_stale_connections(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    long long age_ms = PyLong_AsLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    int64_t latest_us = clock_monotonic_us() - age_ms * 1000;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < e->net.conns.capacity; i++) {
        conn *c = e->net.conns.places[i];
        if (c == NULL || c->closing || !conn_is_silent(c, latest_us)) continue;
        PyObject *id = PyLong_FromUnsignedLongLong(conn_id(c));
        if (id == NULL || PyList_Append(list, id) != 0) Py_CLEAR(list);
        Py_XDECREF(id);
    }
    return list;
}

static PyObject *call_silence_ms(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    conn *c = conn_find(&e->net, connection);
    return PyLong_FromLongLong(c != NULL ? conn_silence_us(c, clock_monotonic_us()) / 1000 : 0);
}

static PyObject *call_has_left(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    conn *c = conn_find(&e->net, connection);
    return PyBool_FromLong(c == NULL || conn_has_left(c));
}

static PyObject *call_set_session(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned user_id;
    int authenticated;
    if (e == NULL || !PyArg_ParseTuple(args, "KIp", &connection, &user_id, &authenticated)) return NULL;
    conn *c = conn_find(&e->net, connection);
    if (c != NULL) conn_set_session(c, user_id, authenticated != 0);
    Py_RETURN_NONE;
}

static PyObject *call_move(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long connection;
    unsigned shard;
    Py_buffer session;
    if (e == NULL || !PyArg_ParseTuple(args, "KIy*", &connection, &shard, &session)) return NULL;
    bool moved = engine_move(e, connection, shard, session.buf, (size_t)session.len);
    PyBuffer_Release(&session);
    return PyBool_FromLong(moved);
}

static bool is_peer(const engine *e, unsigned int shard) {
    if (shard < e->core.links.shards && shard != e->core.links.shard) return true;
    PyErr_Format(PyExc_ValueError, "shard %u is no peer", shard);
    return false;
}

static PyObject *call_peer_down(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned int shard;
    if (e == NULL || !PyArg_ParseTuple(args, "I", &shard) || !is_peer(e, shard)) return NULL;
    peers_down(&e->peers, shard);
    Py_RETURN_NONE;
}

static PyObject *call_peer_up(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned int shard, generation;
    if (e == NULL || !PyArg_ParseTuple(args, "II", &shard, &generation) || !is_peer(e, shard)) return NULL;
    peers_up(&e->peers, shard, generation);
    Py_RETURN_NONE;
}

static PyObject *call_counter_reset(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long counter = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    atomic_store(&e->core.links.counters[counter % SHARED_COUNTERS], 0);
    Py_RETURN_NONE;
}

#define WITH_KEYWORDS(call) (PyCFunction)(void (*)(void)) call
PyMethodDef shardd_engine_methods[] = {
    {"turn", shardd_call_turn, METH_VARARGS, "Works until an event for Python, readiness or the timeout."},
    {"close", shardd_call_close, METH_NOARGS, "Closes everything."},
    {"listen", call_listen, METH_VARARGS, "Accepts connections from now on."},
    {"stop_listening", call_stop_listening, METH_NOARGS, "Accepts no more connections."},
    {"change_limits", shardd_call_change_limits, METH_VARARGS, "Other limits of connections from now on."},
    {"reply", WITH_KEYWORDS(call_reply), METH_VARARGS | METH_KEYWORDS, "Answers the request that Python holds."},
    {"resume", call_resume, METH_O, "Executes the held frame again."},
    {"use_tls", shardd_call_use_tls, METH_VARARGS, "Certificates for those who connect from now on."},
    {"use_tickets", shardd_call_use_tickets, METH_VARARGS, "What session tickets are sealed with."},
    {"execute_poll", call_execute_poll, METH_VARARGS, "Executes the poll that Python holds as a consumer group."},
    {"begin_session", call_begin_session, METH_VARARGS, "The number of its session in a dialect that has one."},
    {"session_memory", call_session_memory, METH_O, "What its session remembers."},
    {"speak", call_speak, METH_VARARGS, "The dialect of one connection from now on."},
    {"close_connection", WITH_KEYWORDS(call_close_connection), METH_VARARGS | METH_KEYWORDS, "Closes one connection."},
    {"close_all", call_close_all, METH_O, "Every connection gets this status when idle, and is closed."},
    {"connections", call_connections, METH_NOARGS, "Open connections."},
    {"stale_connections", call_stale_connections, METH_O, "Connections without a PING for so many milliseconds."},
    {"silence_ms", call_silence_ms, METH_O,
     "Milliseconds since a client gave a sign of life; 0: it waits for an answer."},
    {"has_left", call_has_left, METH_O, "Whether nothing more comes from a client."},
    {"set_session", call_set_session, METH_VARARGS, "User of a connection."},
    {"move", call_move, METH_VARARGS, "Hands the socket to another shard."},
    {"route_topic_known", shardd_call_route_topic_known, METH_O, "Whether the partitions of a topic are known."},
    {"route_topic_put", shardd_call_route_topic_put, METH_VARARGS, "The partitions of a topic."},
    {"route_put", WITH_KEYWORDS(shardd_call_route_put), METH_VARARGS | METH_KEYWORDS, "Adds a decision about a topic."},
    {"routes_end_user", shardd_call_routes_end_user, METH_O, "The routes of a user end."},
    {"routes_end_topic", shardd_call_routes_end_topic, METH_O, "The routes of a topic end."},
    {"routes_end_stream", shardd_call_routes_end_stream, METH_O, "The routes of all topics of a stream end."},
    {"routes_end_all", shardd_call_routes_end_all, METH_NOARGS, "All routes end."},
    {"users_begin", shardd_call_users_begin, METH_NOARGS, "A user that is not known by now is gone."},
    {"user_put", shardd_call_user_put, METH_O, "There is a user."},
    {"user_drop", shardd_call_user_drop, METH_O, "A user is gone."},
    {"seat_put", shardd_call_seat_put, METH_VARARGS, "Lends a membership to the engine."},
    {"seat_take", shardd_call_seat_take, METH_VARARGS, "Takes a membership back."},
    {"fence_drop", shardd_call_fence_drop, METH_VARARGS, "A group is deleted."},
    {"partition_open", shardd_call_partition_open, METH_VARARGS, "Opens a partition that this shard owns."},
    {"partition_segments", shardd_call_partition_segments, METH_O, "Its segments as they are now."},
    {"partition_change_layout", shardd_call_partition_change_layout, METH_VARARGS,
     "The files of a sealed segment are those of another layout."},
    {"partition_surveyed", shardd_call_partition_surveyed, METH_VARARGS,
     "A survey has ended: withholds what is damaged, polls that wait for it start again."},
    {"partition_damage", shardd_call_partition_damage, METH_O, "What is withheld."},
    {"partition_close", shardd_call_partition_close, METH_VARARGS, "Closes a partition; unknown ones are no error."},
    {"partition_flush", shardd_call_partition_flush, METH_VARARGS, "Writes waiting index entries; status."},
    {"partition_sync_lost", shardd_call_partition_sync_lost, METH_VARARGS, "A sync of its files failed elsewhere."},
    {"partition_delete_segments", shardd_call_delete_segments, METH_VARARGS, "Takes the oldest segments away."},
    {"partition_set_limits", shardd_call_set_limits, METH_VARARGS, "What it keeps no longer."},
    {"producers_begin", shardd_call_producers_begin, METH_VARARGS, "What partitions without producers may believe."},
    {"producer_put", shardd_call_producer_put, METH_VARARGS, "A producer and its epoch."},
    {"producer_drop", shardd_call_producer_drop, METH_O, "A producer is forgotten."},
    {"partition_set_window", shardd_call_set_window, METH_VARARGS, "Which ids of messages are compared."},
    {"topic_set_send_limits", shardd_call_set_send_limits, METH_VARARGS, "What a topic takes of its producers."},
    {"partition_set_readonly", shardd_call_set_readonly, METH_VARARGS, "Whether its sends are refused."},
    {"partition_set_paused", shardd_call_set_paused, METH_VARARGS, "Whether its next send is told of."},
    {"partition_lease", shardd_call_lease, METH_VARARGS, "Files from an offset on stay for a reader."},
    {"partition_clean", shardd_call_clean, METH_VARARGS, "One step of the retention."},
    {"partition_oldest_segment", shardd_call_oldest_segment, METH_VARARGS, "What a limit by size would take."},
    {"partition_drop_oldest", shardd_call_drop_oldest, METH_VARARGS, "The log begins behind it; bytes."},
    {"partition_roll_early", shardd_call_roll_early, METH_VARARGS, "Seals the active segment; status."},
    {"partition_slowest", shardd_call_slowest, METH_O, "The lowest stored offset or None."},
    {"expiry_clock", shardd_call_expiry_clock, METH_NOARGS, "What is known of the clocks."},
    {"now_us", shardd_call_now_us, METH_NOARGS, "The time by which everything ages."},
    {"stamp_us", shardd_call_stamp_us, METH_NOARGS, "The time that is written down."},
    {"session_number", shardd_call_session_number, METH_NOARGS, "Higher than all before, on whatever shard."},
    {"partition_sync", shardd_call_partition_sync, METH_VARARGS,
     "Brings everything to the device; EVENT_SYNCED with the token follows."},
    {"partition_set_level", shardd_call_partition_set_level, METH_VARARGS, "Changes when a message is acknowledged."},
    {"partition_is_durable", shardd_call_partition_is_durable, METH_O, "Whether its level is durable."},
    {"offsets_unused", shardd_call_offsets_unused, METH_VARARGS, "Stored offsets that were not used for so long."},
    {"offset_get", shardd_call_offset_get, METH_VARARGS, "Stored offset or None."},
    {"offset_delete", shardd_call_offset_delete, METH_VARARGS, "Deletes a stored offset; status."},
    {"offset_store", shardd_call_offset_store, METH_VARARGS, "Stores an offset; status."},
    {"stats", shardd_call_stats, METH_O, "Statistics slot as PartitionStats."},
    {"stats_sums", shardd_call_stats_sums, METH_VARARGS, "Sums over some of the partitions of a tuple."},
    {"group_lag", shardd_call_group_lag, METH_VARARGS, "How far a group is behind in partitions of a topic."},
    {"counter_reset", call_counter_reset, METH_O, "Sets a balanced counter to 0."},
    {"call_append", shardd_call_call_append, METH_VARARGS, "Appends a batch; what the call is named by."},
    {"call_prepare", shardd_call_call_prepare, METH_VARARGS, "The same, but the records are copied by call_fill."},
    {"call_fill", shardd_call_call_fill, METH_VARARGS, "Copies some of the records; whether there are more."},
    {"call_read", shardd_call_call_read, METH_VARARGS, "Reads of a partition."},
    {"call_store", shardd_call_call_store, METH_VARARGS, "Stores an offset of a partition."},
    {"call_wait", shardd_call_call_wait, METH_VARARGS, "Waits until a partition may have more."},
    {"call_next", shardd_call_call_next, METH_O, "The next window of a read."},
    {"call_cancel", shardd_call_call_cancel, METH_O, "Nobody wants the end of a call."},
    {"balance", shardd_call_balance, METH_VARARGS, "The next partition of a balanced counter."},
    {"login_failures", shardd_call_login_failures, METH_VARARGS, "Failed logins that count under a key."},
    {"login_begin", shardd_call_login_begin, METH_VARARGS, "Counts an attempt under a key."},
    {"login_take_back", shardd_call_login_take_back, METH_VARARGS, "Takes an attempt back."},
    {"login_clear", shardd_call_login_clear, METH_VARARGS, "Forgets the failures of a key."},
    {"login_moment", shardd_call_login_moment, METH_VARARGS, "Books a moment for an attempt."},
    {"login_remember", shardd_call_login_remember, METH_VARARGS, "An account logged in from an address."},
    {"login_is_known", shardd_call_login_is_known, METH_VARARGS, "Whether it did, not too long ago."},
    {"client_enter", shardd_call_client_enter, METH_VARARGS, "Counts a client of a door, when there is room."},
    {"client_leave", shardd_call_client_leave, METH_VARARGS, "A counted client of a door has gone."},
    {"client_authenticated", shardd_call_client_authenticated, METH_O, "A counted client logged in or out."},
    {"peer_down", call_peer_down, METH_VARARGS, "A peer died."},
    {"peer_up", call_peer_up, METH_VARARGS, "A peer serves, in this generation."},
    {"counters", shardd_call_counters, METH_NOARGS, "Engine counters."},
    {"gauges", shardd_call_gauges, METH_NOARGS, "What is queued up now."},
    {"samples", shardd_call_samples, METH_NOARGS, "Traced requests that have ended since the last call."},
    {"latency", shardd_call_latency, METH_NOARGS, "Requests by time, in log2 buckets."},
    {"flush_all", shardd_call_flush_all, METH_NOARGS, "Starts the sync of all; descriptors to fdatasync and close."},
    {"flush_all_done", shardd_call_flush_all_done, METH_O, "Ends that sync with an errno."},
    {NULL, NULL, 0, NULL},
};
