/* Methods of Engine for Python as a caller (native/src/engine/calls.h), and the events of those calls. */
#include "binding.h"

#include "engine/engine_api.h"

static bool is_shard(const engine *e, unsigned shard) {
    if (shard >= e->core.links.shards) PyErr_Format(PyExc_ValueError, "there is no shard %u", shard);
    return shard < e->core.links.shards;
}

typedef uint64_t (*take_batch)(calls *, uint32_t, const partition_request *, const uint8_t *, size_t);

static PyObject *with_batch(PyObject *self, PyObject *args, take_batch take) {
    engine *e = shardd_engine_of(self);
    unsigned owner, count;
    unsigned long long ns, incarnation, token = 0;
    long long expected = -1;
    int distinct = 0;
    Py_buffer batch;
    if (e == NULL ||
        !PyArg_ParseTuple(args, "IKKIy*|Lp", &owner, &ns, &incarnation, &count, &batch, &expected, &distinct))
        return NULL;
    bool good = is_shard(e, owner);
    int asks = APPEND_TELLS | (expected >= 0 ? APPEND_EXPECTS : 0) | (distinct ? APPEND_DISTINCT : 0);
    partition_request what = {.kind = REQUEST_SEND,
                              .ns = ns,
                              .incarnation = incarnation,
                              .count = count,
                              .by = {.sequence = (uint64_t)expected, .asks = (uint8_t)asks}};
    if (good) token = take(&e->calls, owner, &what, batch.buf, (size_t)batch.len);
    PyBuffer_Release(&batch);
    return good ? PyLong_FromUnsignedLongLong(token) : NULL;
}

PyObject *shardd_call_call_append(PyObject *self, PyObject *args) { return with_batch(self, args, calls_append); }
PyObject *shardd_call_call_prepare(PyObject *self, PyObject *args) { return with_batch(self, args, calls_prepare); }

PyObject *shardd_call_call_fill(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long token;
    Py_buffer batch;
    Py_ssize_t bytes;
    if (e == NULL || !PyArg_ParseTuple(args, "Ky*n", &token, &batch, &bytes)) return NULL;
    size_t whole = calls_batch_bytes(&e->calls, token);
    bool good = bytes > 0 && (whole == 0 || whole == (size_t)batch.len);
    bool more = good && calls_fill(&e->calls, token, batch.buf, (size_t)bytes);
    PyBuffer_Release(&batch);
    if (!good) return PyErr_Format(PyExc_ValueError, "not the batch of this call, or no bytes");
    return PyBool_FromLong(more);
}

static PyObject *ask(engine *e, unsigned owner, const partition_request *what) {
    if (!is_shard(e, owner)) return NULL;
    return PyLong_FromUnsignedLongLong(calls_ask(&e->calls, owner, what));
}

PyObject *shardd_call_call_read(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned owner, strategy, count, kind, consumer;
    unsigned long long ns, incarnation, value, assignment;
    unsigned long long user, name;
    int auto_commit;
    if (e == NULL || !PyArg_ParseTuple(args, "IKKIKIIIKKKp", &owner, &ns, &incarnation, &strategy, &value, &count,
                                       &kind, &consumer, &assignment, &user, &name, &auto_commit))
        return NULL;
    partition_request what = {.kind = REQUEST_POLL,
                              .ns = ns,
                              .incarnation = incarnation,
                              .strategy = (uint8_t)strategy,
                              .value = value,
                              .count = count,
                              .consumer_kind = (uint8_t)kind,
                              .consumer_id = consumer,
                              .assignment = assignment,
                              .by_user = {.owner = user, .name = name},
                              .auto_commit = auto_commit != 0};
    return ask(e, owner, &what);
}

PyObject *shardd_call_call_store(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned owner, kind, consumer;
    unsigned long long ns, incarnation, offset, assignment, user, name;
    if (e == NULL || !PyArg_ParseTuple(args, "IKKIIKKKK", &owner, &ns, &incarnation, &kind, &consumer, &offset,
                                       &assignment, &user, &name))
        return NULL;
    partition_request what = {.kind = REQUEST_STORE,
                              .ns = ns,
                              .incarnation = incarnation,
                              .value = offset,
                              .consumer_kind = (uint8_t)kind,
                              .consumer_id = consumer,
                              .assignment = assignment,
                              .by_user = {.owner = user, .name = name}};
    return ask(e, owner, &what);
}

PyObject *shardd_call_call_wait(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned owner, user, wait_ms;
    unsigned long long ns, incarnation;
    if (e == NULL || !PyArg_ParseTuple(args, "IKKII", &owner, &ns, &incarnation, &user, &wait_ms)) return NULL;
    if (!is_shard(e, owner)) return NULL;
    return PyLong_FromUnsignedLongLong(calls_wait(&e->calls, owner, ns, incarnation, user, (int64_t)wait_ms * 1000));
}

PyObject *shardd_call_call_next(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long token = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    if (!calls_next(&e->calls, token)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *shardd_call_call_cancel(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long token = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    return PyBool_FromLong(calls_cancel(&e->calls, token));
}

PyObject *shardd_call_balance(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned counter, partitions;
    if (e == NULL || !PyArg_ParseTuple(args, "II", &counter, &partitions)) return NULL;
    if (partitions == 0) return PyErr_Format(PyExc_ValueError, "no partitions");
    return PyLong_FromUnsignedLong(links_balance(&e->core.links, counter, partitions, NULL));
}

PyObject *shardd_call_event(engine *e, const event *v) {
    call_window w = {0};
    bool window = calls_window(&e->calls, v->connection, &w);
    bool appended = v->made.kind != PRODUCED_NONE;
    PyObject *made = SHARDD_RESULT(
        SHARDD_CALL, SHARDD_NUMBER(v->connection), SHARDD_NUMBER(v->code), SHARDD_NUMBER(v->number),
        SHARDD_NUMBER(appended ? v->made.first : w.whole.current_offset),
        SHARDD_NUMBER(appended ? v->made.count : w.whole.total_count), SHARDD_NUMBER(v->made.timestamp),
        SHARDD_NUMBER(w.whole.total_bytes), SHARDD_BYTES(w.records, w.length));
    if (window) calls_took(&e->calls, v->connection);
    return made;
}
