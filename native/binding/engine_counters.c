/* Engine.counters(): the engine's own numbers as a dict. */
#include "binding.h"

#include <stddef.h>

#include "engine/engine_api.h"
#include "engine/gauges.h"

#define COUNTER(name) {#name, offsetof(core_counters, name)}
static const struct {
    const char *name;
    size_t offset;
} counter_fields[] = {
    COUNTER(accepted),
    COUNTER(closed),
    COUNTER(refused_connections),
    COUNTER(refused_by_address),
    COUNTER(refused_introductions),
    COUNTER(refused_before_login),
    COUNTER(frames),
    COUNTER(sends),
    COUNTER(polls),
    COUNTER(stores),
    COUNTER(messages_in),
    COUNTER(messages_out),
    COUNTER(bytes_in),
    COUNTER(bytes_out),
    COUNTER(forwarded),
    COUNTER(served_for_peers),
    COUNTER(moved_out),
    COUNTER(moved_in),
    COUNTER(commits),
    COUNTER(append_calls),
    COUNTER(syncs),
    COUNTER(sync_errors),
    COUNTER(turns),
    COUNTER(python_events),
    COUNTER(memory_waits),
    COUNTER(buffer_starved),
    COUNTER(throttled),
    COUNTER(timeouts),
    COUNTER(evicted),
    COUNTER(parked),
    COUNTER(damaged),
    COUNTER(refused_by_topic),
    COUNTER(reads_cached),
    COUNTER(reads_ring),
    COUNTER(route_misses),
    COUNTER(route_topics),
    COUNTER(turns_exchanged),
};

#define OF_TLS(name) {"tls_" #name, offsetof(tls_counters, name)}
static const struct {
    const char *name;
    size_t offset;
} tls_fields[] = {OF_TLS(handshakes), OF_TLS(resumed), OF_TLS(failed), OF_TLS(plain)};

#define GAUGE(name) {#name, offsetof(engine_gauges, name)}
static const struct {
    const char *name;
    size_t offset;
} gauge_fields[] = {
    GAUGE(partitions_dirty),
    GAUGE(syncs_waiting),
    GAUGE(links_out),
    GAUGE(links_out_max),
    GAUGE(links_in),
    GAUGE(waiters),
    GAUGE(throttled_connections),
    GAUGE(receive_buffers_free),
    GAUGE(anonymous_buffers_free),
    GAUGE(partial_bytes),
    GAUGE(output_bytes),
    GAUGE(read_jobs),
    GAUGE(polls_surveying),
    GAUGE(polls_waiting),
    GAUGE(calls),
    GAUGE(call_record_bytes),
    GAUGE(index_pages_bytes),
    GAUGE(disk_free_bytes),
    GAUGE(disk_free_inodes),
    GAUGE(disk_refuses),
};

static bool put_counter(PyObject *result, const char *name, uint64_t value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    bool good = number != NULL && PyDict_SetItemString(result, name, number) == 0;
    Py_XDECREF(number);
    return good;
}

PyObject *shardd_call_counters(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *result = e != NULL ? PyDict_New() : NULL;
    bool good = result != NULL;
    for (size_t i = 0; good && i < sizeof counter_fields / sizeof counter_fields[0]; i++)
        good = put_counter(
            result, counter_fields[i].name,
            *(const uint64_t *)(const void *)((const char *)&e->core.counters + counter_fields[i].offset));
    for (size_t i = 0; good && i < sizeof tls_fields / sizeof tls_fields[0]; i++)
        good = put_counter(
            result, tls_fields[i].name,
            *(const uint64_t *)(const void *)((const char *)&e->net.tls.counters + tls_fields[i].offset));
    good = good && put_counter(result, "connections", e->net.conns.count) &&
           put_counter(result, "pool_used_bytes", pool_used(e->core.pool)) &&
           put_counter(result, "pool_capacity_bytes", pool_capacity(e->core.pool)) &&
           put_counter(result, "pool_resident_bytes", pool_resident(e->core.pool)) &&
           put_counter(result, "calls_refused", e->calls.refused) &&
           put_counter(result, "ring_enters", e->core.io.enters) &&
           put_counter(result, "index_reads", e->core.files.indexes.reads) &&
           put_counter(result, "index_hits", e->core.files.indexes.hits) &&
           put_counter(result, "offsets_removed", e->core.users.removed) &&
           put_counter(result, "routes", e->core.routes.count) &&
           put_counter(result, "partitions", e->core.partitions.used) &&
           put_counter(result, "syncs_running", e->core.sync.running + (e->core.sync.pending != NULL));
    if (!good) Py_CLEAR(result);
    return result;
}

PyObject *shardd_call_gauges(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *result = e != NULL ? PyDict_New() : NULL;
    if (result == NULL) return NULL;
    engine_gauges gauges;
    engine_read_gauges(e, &gauges);
    bool good = true;
    for (size_t i = 0; good && i < sizeof gauge_fields / sizeof gauge_fields[0]; i++)
        good = put_counter(result, gauge_fields[i].name,
                           *(const uint64_t *)(const void *)((const char *)&gauges + gauge_fields[i].offset));
    if (!good) Py_CLEAR(result);
    return result;
}

PyObject *shardd_call_latency(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *result = e != NULL ? PyList_New(LATENCY_BUCKETS) : NULL;
    for (uint32_t i = 0; result != NULL && i < LATENCY_BUCKETS; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(e->net.latency[i]);
        if (count == NULL) Py_CLEAR(result);
        else PyList_SetItem(result, i, count);
    }
    return result;
}

PyObject *shardd_call_samples(PyObject *self, PyObject *unused) {
    engine *e = shardd_engine_of(self);
    (void)unused;
    PyObject *result = e != NULL ? PyList_New(0) : NULL;
    for (uint32_t i = 0; result != NULL && e->net.samples.every != 0 && i < SAMPLES_MAX; i++) {
        sample *one = &e->net.samples.places[i];
        if (one->state != SAMPLE_ENDED) continue;
        one->state = SAMPLE_FREE;
        PyObject *begin = PyBytes_FromStringAndSize((const char *)one->begin, (Py_ssize_t)one->begin_length);
        PyObject *told = SHARDD_RESULT(
            SHARDD_SAMPLE, SHARDD_NUMBER(one->code), SHARDD_NUMBER(one->dialect), SHARDD_NUMBER(one->user_id),
            SHARDD_NUMBER(one->connection), SHARDD_NUMBER(one->status), SHARDD_NUMBER(one->length),
            SHARDD_NUMBER((uint64_t)one->began_us), SHARDD_NUMBER((uint64_t)one->took_us), begin);
        if (told == NULL || PyList_Append(result, told) != 0) Py_CLEAR(result);
        Py_XDECREF(told);
    }
    return result;
}
