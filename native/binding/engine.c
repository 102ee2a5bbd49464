/* The type Engine: creation, the turn (without the interpreter lock) and the conversion of events. */
#include "binding.h"

#include <errno.h>
#include <string.h>

#include "engine/engine_api.h"

engine *shardd_engine_of(PyObject *self) {
    engine *e = ((engine_object *)self)->engine;
    if (e == NULL) PyErr_SetString(PyExc_RuntimeError, "the engine is closed");
    return e;
}

/* A list of exactly `count` descriptors into `fds`. */
static bool read_fds(PyObject *list, const char *name, uint32_t count, int *fds) {
    if (!PyList_Check(list) || PyList_Size(list) != (Py_ssize_t)count) {
        PyErr_Format(PyExc_ValueError, "%s must be a list of %u descriptors", name, count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        fds[i] = (int)PyLong_AsLong(PyList_GetItem(list, (Py_ssize_t)i));
        if (PyErr_Occurred()) return false;
    }
    return true;
}

static char *engine_arguments[] = {"shard",
                                   "shards",
                                   "shared_fd",
                                   "pool_fds",
                                   "doorbell_fds",
                                   "handover_receive_fd",
                                   "handover_send_fds",
                                   "pool_bytes",
                                   "connections_max",
                                   "connections_per_address_max",
                                   "connections_before_login_max",
                                   "login_timeout_ms",
                                   "idle_timeout_ms",
                                   "request_timeout_ms",
                                   "partial_frame_timeout_ms",
                                   "slow_reader_timeout_ms",
                                   "sync_interval_ms",
                                   "save_interval_ms",
                                   "save_syncs",
                                   "journal_messages_max",
                                   "journal_bytes_max",
                                   "consumer_offsets_max",
                                   "socket_migration",
                                   "dialect",
                                   "pipeline_window_requests",
                                   "data_directory",
                                   "disk_reserve_bytes",
                                   "io_engine",
                                   "websocket_frame_bytes_max",
                                   "websocket_message_bytes_max",
                                   "websocket_accept_unmasked",
                                   "websocket_origins",
                                   "tls_mode",
                                   "websocket_tls_mode",
                                   "clients_have_names",
                                   "cache_indexes",
                                   "waiting_polls_max",
                                   "waiting_polls_per_user_max",
                                   "sample_every",
                                   "busy_poll_us",
                                   "tcp_proxies",
                                   "websocket_proxies",
                                   NULL};

static int refused(const char *sentence) {
    PyErr_SetString(PyExc_ValueError, sentence);
    return -1;
}

static int engine_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    engine_options o = {0};
    PyObject *pools, *doorbells, *handovers;
    unsigned long long pool_bytes, journal_messages, journal_bytes, reserve_bytes, frame_bytes, message_bytes;
    long long login_ms, idle_ms, request_ms, partial_ms, slow_ms, sync_ms, save_ms;
    int migration, save_syncs, unmasked, names = 0;
    unsigned mode = TLS_OFF, websocket_mode = TLS_OFF, indexes = INDEX_MODE_OPEN_SEGMENT;
    const char *io_engine, *dialect_name;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$IIiOOiOKIIILLLLLLLpKKIpsIzKsKKpsIIpIIIIIss", engine_arguments, &o.shard, &o.shards,
            &o.shared_fd, &pools, &doorbells, &o.handover_receive_fd, &handovers, &pool_bytes, &o.limits.connections,
            &o.limits.per_address, &o.limits.before_login, &login_ms, &idle_ms, &request_ms, &partial_ms, &slow_ms,
            &sync_ms, &save_ms, &save_syncs, &journal_messages, &journal_bytes, &o.consumer_offsets_max, &migration,
            &dialect_name, &o.pipeline_window_requests, &o.data_directory, &reserve_bytes, &io_engine, &frame_bytes,
            &message_bytes, &unmasked, &o.websocket.origins, &mode, &websocket_mode, &names, &indexes,
            &o.waiting_polls.all, &o.waiting_polls.of_user, &o.sample_every, &o.busy_poll_us, &o.tcp_proxies,
            &o.websocket_proxies))
        return -1;
    if (strcmp(io_engine, "io_uring") != 0 && strcmp(io_engine, "epoll") != 0)
        return refused("io_engine must be io_uring or epoll");
    o.dialect = dialect_named(dialect_name);
    if (o.dialect == NULL) return refused("there is no dialect of this name");
    if (o.pipeline_window_requests == 0 || o.pipeline_window_requests > WINDOW_REQUESTS_MAX)
        return refused("pipeline_window_requests must be 1 to 32");
    if (o.busy_poll_us > BUSY_POLL_US_MAX) return refused("busy_poll_us must be 0 to 1000");
    if (indexes > INDEX_MODE_ALL) return refused("cache_indexes must be 0 to 2");
    if (mode > TLS_BOTH || websocket_mode > TLS_BOTH) return refused("tls_mode and websocket_tls_mode must be 0 to 2");
    if (o.shards == 0 || o.shards > SHARED_SHARDS_MAX || o.shard >= o.shards)
        return refused("shard must be below shards, shards at most 256");
    int pool_fds[SHARED_SHARDS_MAX], doorbell_fds[SHARED_SHARDS_MAX], handover_fds[SHARED_SHARDS_MAX];
    if (!read_fds(pools, "pool_fds", o.shards, pool_fds) ||
        !read_fds(doorbells, "doorbell_fds", o.shards, doorbell_fds) ||
        !read_fds(handovers, "handover_send_fds", o.shards, handover_fds))
        return -1;
    o.pool_fds = pool_fds;
    o.doorbell_fds = doorbell_fds;
    o.handover_send_fds = handover_fds;
    o.pool_bytes = pool_bytes;
    o.disk_reserve_bytes = reserve_bytes;
    o.websocket.limits = (frame_limits){frame_bytes, message_bytes, unmasked != 0};
    o.login_timeout_us = login_ms * 1000;
    o.idle_timeout_us = idle_ms * 1000;
    o.request_timeout_us = request_ms * 1000;
    o.partial_frame_timeout_us = partial_ms * 1000;
    o.slow_reader_timeout_us = slow_ms * 1000;
    o.sync_interval_us = sync_ms * 1000;
    o.save_interval_us = save_ms * 1000;
    o.save_syncs = save_syncs != 0;
    o.journal_messages_max = journal_messages;
    o.journal_bytes_max = journal_bytes;
    o.socket_migration = migration != 0;
    o.tls[TLS_OF_TCP] = (tls_mode)mode;
    o.tls[TLS_OF_WEBSOCKET] = (tls_mode)websocket_mode;
    o.cache_indexes = (index_mode)indexes;
    o.clients_have_names = names != 0;
    o.io_engine = strcmp(io_engine, "epoll") == 0 ? IO_ENGINE_EPOLL : IO_ENGINE_URING;
    int result = engine_open(&((engine_object *)self)->engine, &o);
    if (result != 0) {
        errno = -result;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static void engine_dealloc(PyObject *self) {
    engine_object *object = (engine_object *)self;
    if (object->engine != NULL) engine_close(object->engine);
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type); /* each object holds its type */
}

#define DATA(from, to) SHARDD_BYTES(v->data + (from), (to) - (from))

static PyObject *event_object(engine *e, const event *v) {
    if (v->kind == EVENT_CALL) return shardd_call_event(e, v);
    PyObject *first = SHARDD_NUMBER(v->connection);
    switch (v->kind) {
    case EVENT_ACCEPTED:
        return SHARDD_RESULT(SHARDD_ACCEPTED, first, PyUnicode_FromString(v->address), SHARDD_NUMBER(v->code));
    case EVENT_CLOSED: return SHARDD_RESULT(SHARDD_CLOSED, first, DATA(0, v->data_length));
    case EVENT_REQUEST:
        return SHARDD_RESULT(SHARDD_REQUEST, first, SHARDD_NUMBER(v->code), DATA(0, v->data_length),
                             SHARDD_NUMBER(v->user_id), PyBool_FromLong(v->authenticated), SHARDD_NUMBER(v->dialect));
    case EVENT_ROUTE_MISS:
        return SHARDD_RESULT(SHARDD_ROUTE_MISS, first, SHARDD_NUMBER(v->code), DATA(0, v->split),
                             DATA(v->split, v->data_length), SHARDD_NUMBER(v->user_id), SHARDD_NUMBER(v->number));
    case EVENT_MOVED_IN:
        return SHARDD_RESULT(SHARDD_MOVED_IN, first, PyUnicode_FromString(v->address), DATA(0, v->data_length),
                             SHARDD_NUMBER(v->user_id), PyBool_FromLong(v->authenticated));
    case EVENT_GROUP_POLLED:
        return SHARDD_RESULT(SHARDD_GROUP_POLLED, first, SHARDD_NUMBER(v->code), SHARDD_NUMBER(v->number),
                             PyBool_FromLong(v->authenticated));
    case EVENT_MOVE: return SHARDD_RESULT(SHARDD_MOVE, first, SHARDD_NUMBER(v->number));
    case EVENT_DOUBT: return SHARDD_RESULT(SHARDD_DOUBT, first, SHARDD_NUMBER(v->number));
    case EVENT_POISONED: return SHARDD_RESULT(SHARDD_POISONED, first, SHARDD_NUMBER(v->number));
    case EVENT_ROOM:
        Py_XDECREF(first);
        return SHARDD_RESULT(SHARDD_ROOM, PyBool_FromLong(v->connection != 0), SHARDD_NUMBER(v->number),
                             SHARDD_NUMBER(v->free_inodes));
    case EVENT_SYNCED: return SHARDD_RESULT(SHARDD_SYNCED, first, SHARDD_NUMBER(v->number));
    case EVENT_CALL: break;
    case EVENT_CERTIFIED:
        return SHARDD_RESULT(SHARDD_CERTIFIED, first,
                             PyUnicode_DecodeUTF8((const char *)v->data, (Py_ssize_t)v->data_length, "replace"));
    case EVENT_ROLLED: return SHARDD_RESULT(SHARDD_ROLLED, first, SHARDD_NUMBER(v->number));
    case EVENT_RESUMED: return SHARDD_RESULT(SHARDD_RESUMED, first);
    }
    Py_UNREACHABLE();
}

static PyObject *events_list(engine *e) {
    PyObject *list = PyList_New(e->core.events.count);
    for (uint32_t i = 0; list != NULL && i < e->core.events.count; i++) {
        PyObject *item = event_object(e, &e->core.events.list[i]);
        if (item == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, i, item);
    }
    events_clear(&e->core.events);
    return list;
}

static PyObject *call_turn(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    int epoll_fd;
    long long timeout_ms;
    bool ready;
    if (e == NULL || !PyArg_ParseTuple(args, "iL", &epoll_fd, &timeout_ms)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    ready = engine_turn(e, epoll_fd, timeout_ms < 0 ? -1 : timeout_ms * 1000);
    Py_END_ALLOW_THREADS
    PyObject *events = events_list(e);
    if (events == NULL) return NULL;
    return SHARDD_RESULT(SHARDD_TURN, PyBool_FromLong(ready), events, SHARDD_NUMBER(turn_watch_take(&e->watch)));
}

static PyObject *call_close(PyObject *self, PyObject *unused) {
    engine_object *object = (engine_object *)self;
    (void)unused;
    if (object->engine != NULL) engine_close(object->engine);
    object->engine = NULL;
    Py_RETURN_NONE;
}

static PyObject *get_generation(PyObject *self, void *unused) {
    (void)unused;
    engine *e = shardd_engine_of(self);
    return e != NULL ? PyLong_FromUnsignedLong(e->core.links.generation) : NULL;
}

static PyGetSetDef properties[] = {
    {"generation", get_generation, NULL, "Counts the starts of this shard's workers.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* turn and close stand first in the method table of engine_calls.c. */
PyObject *shardd_call_turn(PyObject *self, PyObject *args) { return call_turn(self, args); }
PyObject *shardd_call_close(PyObject *self, PyObject *unused) { return call_close(self, unused); }

PyObject *shardd_make_engine_type(void) {
    static const char about[] = "The native engine of one worker; its loop thread only.";
    PyType_Slot slots[] = {
        {Py_tp_dealloc, (void *)engine_dealloc}, {Py_tp_doc, (void *)about},
        {Py_tp_methods, shardd_engine_methods},  {Py_tp_getset, (void *)properties},
        {Py_tp_init, (void *)engine_init},       {0, NULL},
    };
    unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE;
    PyType_Spec spec = {"shardd.engine._native.Engine", sizeof(engine_object), 0, flags, slots};
    return PyType_FromSpec(&spec);
}
