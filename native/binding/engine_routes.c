/* Methods of Engine about routes (native/src/core/route.h). A topic is named by the namespace of its partition 0. */
#include "binding.h"

#include <string.h>

#include "base/hash.h"
#include "engine/engine_api.h"

PyObject *shardd_call_route_topic_known(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    return PyBool_FromLong(routes_topic(&e->core.routes, ns) != NULL);
}

PyObject *shardd_call_route_topic_put(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns;
    unsigned stream_id, counter;
    Py_buffer incarnations, slots;
    if (e == NULL || !PyArg_ParseTuple(args, "IKIy*y*", &stream_id, &ns, &counter, &incarnations, &slots)) return NULL;
    size_t count = (size_t)incarnations.len / sizeof(uint64_t);
    bool whole = count * sizeof(uint64_t) == (size_t)incarnations.len && count * sizeof(uint32_t) == (size_t)slots.len;
    const uint32_t *slot = slots.buf;
    for (size_t i = 0; whole && i < count; i++) whole = slot[i] < SHARED_STATS_SLOTS;
    if (count > BALANCED_PARTITIONS_MAX || !whole) {
        PyBuffer_Release(&incarnations);
        PyBuffer_Release(&slots);
        return PyErr_Format(PyExc_ValueError, "%zu incarnations and a part of one, too many, or not a slot for each",
                            count);
    }
    route_topic *topic = routes_topic_put(&e->core.routes, stream_id, ns, (uint32_t)count);
    for (size_t i = 0; topic != NULL && i < count; i++) {
        route_partition *p = &topic->partitions[i];
        p->ns = ns + i;
        p->owner = hash_owner(p->ns, e->core.links.shards);
        p->slot = slot[i];
        if (p->owner == e->core.links.shard) topic->own[topic->own_count++] = (uint32_t)i;
        memcpy(&p->incarnation, (const uint8_t *)incarnations.buf + i * sizeof(uint64_t), sizeof(uint64_t));
    }
    PyBuffer_Release(&incarnations);
    PyBuffer_Release(&slots);
    if (topic == NULL) return PyErr_NoMemory();
    topic->counter = counter;
    e->core.counters.route_topics++;
    Py_RETURN_NONE;
}

PyObject *shardd_call_route_put(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"user_id",  "stream_identifier", "topic_identifier", "namespace",
                            "can_send", "can_poll",          "user_incarnation", NULL};
    engine *e = shardd_engine_of(self);
    unsigned user_id;
    unsigned long long ns, user_incarnation;
    const char *stream, *topic;
    Py_ssize_t stream_length, topic_length;
    int can_send, can_poll;
    if (e == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "Iy#y#K$ppK", names, &user_id, &stream, &stream_length,
                                                  &topic, &topic_length, &ns, &can_send, &can_poll, &user_incarnation))
        return NULL;
    uint8_t key[ROUTE_KEY_MAX];
    if (stream_length + topic_length > (Py_ssize_t)sizeof key)
        return PyErr_Format(PyExc_ValueError, "identifiers of %zd bytes", stream_length + topic_length);
    memcpy(key, stream, (size_t)stream_length);
    memcpy(key + stream_length, topic, (size_t)topic_length);
    route_topic *there = routes_topic(&e->core.routes, ns);
    if (there == NULL) return PyErr_Format(PyExc_KeyError, "nothing is known of the topic at %llu", ns);
    route *r = routes_put(&e->core.routes, user_id, key, (uint32_t)(stream_length + topic_length), there);
    if (r == NULL) return PyErr_NoMemory();
    r->can_send = can_send != 0;
    r->can_poll = can_poll != 0;
    r->user_incarnation = user_incarnation;
    Py_RETURN_NONE;
}

PyObject *shardd_call_routes_end_user(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long user_id = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    routes_end_user(&e->core.routes, (uint32_t)user_id);
    waiting_polls_wake_user(&e->core, (uint32_t)user_id);
    Py_RETURN_NONE;
}

PyObject *shardd_call_routes_end_topic(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long ns = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    routes_end_topic(&e->core.routes, ns);
    waiting_polls_wake_topic(&e->core, ns);
    Py_RETURN_NONE;
}

PyObject *shardd_call_routes_end_stream(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long stream_id = PyLong_AsUnsignedLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    routes_end_stream(&e->core.routes, (uint32_t)stream_id);
    waiting_polls_wake_stream(&e->core, (uint32_t)stream_id);
    Py_RETURN_NONE;
}

PyObject *shardd_call_routes_end_all(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    if (e == NULL) return NULL;
    routes_end_all(&e->core.routes);
    waiting_polls_wake_all(&e->core);
    Py_RETURN_NONE;
}

PyObject *shardd_call_users_begin(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    if (e == NULL) return NULL;
    if (e->core.users.version != 0) return PyErr_Format(PyExc_RuntimeError, "the users are known already");
    known_users_begin(&e->core.users);
    Py_RETURN_NONE;
}

PyObject *shardd_call_user_put(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long incarnation = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    if (incarnation == 0) return PyErr_Format(PyExc_ValueError, "no user has the incarnation 0");
    if (known_users_add(&e->core.users, incarnation) != 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *shardd_call_user_drop(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    unsigned long long incarnation = PyLong_AsUnsignedLongLong(arg);
    if (e == NULL || PyErr_Occurred()) return NULL;
    known_users_end(&e->core.users, incarnation);
    Py_RETURN_NONE;
}
