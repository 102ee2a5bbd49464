/* shardd.benchmark._load: the load engine of `shardd bench` (native/load). Contract: shardd/benchmark/_load.pyi. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/dialect.h"
#include "load/floor.h"

enum { ACTORS_MAX = 65536 };

static const char *wrong_plan(const actor_plan *p, size_t slots, size_t payload) {
    if (p->sends_slot >= slots || p->polls_slot >= slots) return "a budget is behind the slots";
    if (p->payload_max > payload || p->payload_min > p->payload_max) return "a payload is longer than what is given";
    if (p->batch_min == 0 || p->batch_min > p->batch_max || p->batch_max > UINT32_MAX) return "a batch has no messages";
    if (p->depth == 0 || p->depth > 1024 || (p->polls && p->depth != 1)) return "this depth makes no sense";
    if (!p->sends && !p->polls) return "an actor does nothing";
    if (p->open_loop && p->send_rate == 0) return "an open loop has no rate";
    if (p->partitioning >= PARTITIONINGS || p->partitions == 0 || p->hot_percent > 100) return "no such partitioning";
    if (p->dialect >= DIALECTS) return "nobody knows this dialect";
    return NULL;
}

static PyObject *results_of(const actor *actors, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const records *r = &actors[i].records;
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)r->items,
                                                    (Py_ssize_t)(r->count * sizeof(load_record)));
        if (bytes == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, (Py_ssize_t)i, bytes);
    }
    return list;
}

static const char CHANNEL[] = "shardd.benchmark.channel";

/* Of a capsule, or NULL of None. Sets an exception when it is neither. */
static channel *channel_of(PyObject *item) { return item == Py_None ? NULL : PyCapsule_GetPointer(item, CHANNEL); }

static PyObject *run_actors(load_run *run, const actor_plan *plans, size_t count, PyObject *channels) {
    actor *actors = calloc(count, sizeof *actors);
    if (actors == NULL) return PyErr_NoMemory();
    bool done = true;
    for (size_t i = 0; done && i < count; i++)
        done = actor_open(&actors[i], &plans[i], channel_of(PyList_GetItem(channels, (Py_ssize_t)i)), run, i + 1);
    Py_BEGIN_ALLOW_THREADS;
    done = done && load_run_actors(run, actors, count);
    Py_END_ALLOW_THREADS;
    PyObject *results = NULL;
    if (!done) PyErr_SetString(PyExc_RuntimeError, run->fault);
    else if ((results = results_of(actors, count)) != NULL)
        results = Py_BuildValue("(NKKKKKKKKKK)", results, (unsigned long long)run->cpu_ns,
                                (unsigned long long)run->wall_ns, (unsigned long long)run->waited_ns,
                                (unsigned long long)run->empty_polls, (unsigned long long)run->sent_bytes,
                                (unsigned long long)run->received_bytes, (unsigned long long)run->broken,
                                (unsigned long long)run->refused, (unsigned long long)run->sent_again,
                                (unsigned long long)run->interrupted_ns);
    for (size_t i = 0; i < count; i++) actor_close(&actors[i]);
    free(actors);
    return results;
}

static PyObject *run(PyObject *module, PyObject *args) {
    Py_buffer slots, plans, payload;
    unsigned long long warmup_ns;
    long long parent;
    int broken_fd = -1, opened_fd = -1;
    PyObject *channels;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*y*y*KLO!|ii", &slots, &plans, &payload, &warmup_ns, &parent, &PyList_Type, &channels,
                          &broken_fd, &opened_fd))
        return NULL;
    size_t count = (size_t)plans.len / sizeof(actor_plan), slots_count = (size_t)slots.len / sizeof(int64_t);
    const char *wrong = NULL;
    PyObject *result = NULL;
    if ((size_t)plans.len != count * sizeof(actor_plan) || count == 0 || count > ACTORS_MAX)
        wrong = "no plan of actors";
    else if ((size_t)PyList_Size(channels) != count) wrong = "a channel or None for each actor";
    else if ((uintptr_t)slots.buf % sizeof(int64_t) != 0 || slots_count < SLOTS_FIXED) wrong = "no slots";
    actor_plan *copies = wrong == NULL ? malloc((size_t)plans.len) : NULL;
    if (copies != NULL) memcpy(copies, plans.buf, (size_t)plans.len);
    for (size_t i = 0; copies != NULL && wrong == NULL && i < count; i++)
        wrong = wrong_plan(&copies[i], slots_count, (size_t)payload.len);
    for (size_t i = 0; wrong == NULL && i < count; i++)
        if (channel_of(PyList_GetItem(channels, (Py_ssize_t)i)) == NULL && PyErr_Occurred()) wrong = "no channel";
    if (wrong != NULL) PyErr_SetString(PyExc_ValueError, wrong);
    else if (copies == NULL) PyErr_NoMemory();
    else {
        load_run state = {.slots = slots.buf,
                          .payload = payload.buf,
                          .warmup_ns = warmup_ns,
                          .parent = parent,
                          .reopens = broken_fd >= 0,
                          .broken_fd = broken_fd,
                          .opened_fd = opened_fd};
        result = run_actors(&state, copies, count, channels);
    }
    free(copies);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&plans);
    PyBuffer_Release(&payload);
    return result;
}

static void destroy(PyObject *capsule) { channel_close(PyCapsule_GetPointer(capsule, CHANNEL)); }

static PyObject *open_channel(PyObject *module, PyObject *args) {
    int fd, tls, websocket, verify;
    channel_options o;
    char fault[CHANNEL_FAULT_MAX] = "";
    channel *c;
    (void)module;
    if (!PyArg_ParseTuple(args, "ipppssss", &fd, &tls, &websocket, &verify, &o.name, &o.ca_file, &o.certificate,
                          &o.key))
        return NULL;
    o.tls = tls;
    o.websocket = websocket;
    o.verify = verify;
    Py_BEGIN_ALLOW_THREADS;
    c = channel_open(fd, &o, fault);
    Py_END_ALLOW_THREADS;
    if (c == NULL) {
        PyErr_SetString(PyExc_OSError, fault);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(c, CHANNEL, destroy);
    if (capsule == NULL) channel_close(c);
    return capsule;
}

static PyObject *send_channel(PyObject *module, PyObject *args) {
    PyObject *capsule;
    Py_buffer bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*", &capsule, &bytes)) return NULL;
    channel *c = PyCapsule_GetPointer(capsule, CHANNEL);
    ssize_t n = c == NULL ? -1 : channel_send(c, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    if (c == NULL) return NULL;
    return n < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(n);
}

static PyObject *receive_channel(PyObject *module, PyObject *args) {
    PyObject *capsule;
    uint8_t bytes[1 << 14];
    (void)module;
    if (!PyArg_ParseTuple(args, "O", &capsule)) return NULL;
    channel *c = PyCapsule_GetPointer(capsule, CHANNEL);
    if (c == NULL) return NULL;
    ssize_t n = channel_receive(c, bytes, sizeof bytes);
    return n < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyBytes_FromStringAndSize((char *)bytes, n);
}

static PyObject *hand_opened(PyObject *module, PyObject *args) {
    int pipe;
    unsigned long long actor, fd, session[4];
    PyObject *item;
    (void)module;
    if (!PyArg_ParseTuple(args, "iKKO(KKKK)", &pipe, &actor, &fd, &item, &session[0], &session[1], &session[2],
                          &session[3]))
        return NULL;
    opened o = {.actor = actor,
                .fd = fd,
                .channel = channel_of(item),
                .session = {session[0], session[1], session[2], session[3]}};
    if (PyErr_Occurred()) return NULL;
    ssize_t n;
    Py_BEGIN_ALLOW_THREADS;
    n = write(pipe, &o, sizeof o);
    Py_END_ALLOW_THREADS;
    if (n != (ssize_t)sizeof o) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* In a child process alone: it returns nothing but an exception. */
static PyObject *serve_floor(PyObject *module, PyObject *args) {
    floor_options options = {0};
    Py_buffer cpus;
    int sync;
    (void)module;
    if (!PyArg_ParseTuple(args, "isy*p", &options.listener, &options.directory, &cpus, &sync)) return NULL;
    options.threads = (long)(cpus.len / (Py_ssize_t)sizeof(int));
    options.sync = sync;
    options.offsets = true;
    if (options.threads < 1 || options.threads > FLOOR_THREADS_MAX) {
        PyBuffer_Release(&cpus);
        PyErr_SetString(PyExc_ValueError, "the floor has 1 to 16 threads");
        return NULL;
    }
    memcpy(options.cpus, cpus.buf, (size_t)options.threads * sizeof(int));
    PyEval_SaveThread();
    floor_run(&options);
}

static PyMethodDef functions[] = {
    {"open_channel", open_channel, METH_VARARGS, "TLS, WebSocket, or both, on a connected socket."},
    {"send_channel", send_channel, METH_VARARGS, "As send."},
    {"receive_channel", receive_channel, METH_VARARGS, "As recv."},
    {"opened", hand_opened, METH_VARARGS, "Tells a run what was opened in place of a broken connection."},
    {"floor", serve_floor, METH_VARARGS, "Serves as the floor, in this process and for ever."},
    {"run", run, METH_VARARGS, "Runs actors to their ends."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "shardd.benchmark._load", .m_doc = "Load.",
                                        .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__load(void) { return PyModule_Create(&definition); }
