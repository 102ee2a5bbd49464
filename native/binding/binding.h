/* What the files of the CPython binding share. Every file but module.c fills tables; module.c makes the module. */
#ifndef SHARDD_BINDING_H
#define SHARDD_BINDING_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "log/partition.h"

/* binding/pure.c: functions over bytes and file descriptors (owner, xxh32, scan_file, find_later, scan_buffer,
 * send_request_parse, batch_assign). Ends with a zero entry: usable as the m_methods of a module. */
extern PyMethodDef shardd_pure_methods[];
extern PyMethodDef shardd_memory_methods[];  /* binding/memory_policy.c */
extern PyMethodDef shardd_recover_methods[]; /* binding/recover.c */
extern PyMethodDef shardd_blocks_methods[];  /* binding/blocks.c */
extern PyMethodDef shardd_tls_methods[];     /* binding/engine_tls.c */
PyObject *shardd_call_use_tls(PyObject *self, PyObject *args);
PyObject *shardd_call_use_tickets(PyObject *self, PyObject *args);

/* binding/engine.c, binding/engine_calls.c: the type `Engine` of _native.pyi. */
PyObject *shardd_make_engine_type(void);
extern PyMethodDef shardd_engine_methods[];
PyObject *shardd_call_turn(PyObject *self, PyObject *args);
PyObject *shardd_call_close(PyObject *self, PyObject *unused);
/* binding/engine_retention.c */
PyObject *shardd_call_delete_segments(PyObject *self, PyObject *args);
int shardd_read_limits(PyObject *object, void *limits); /* for O& */
PyObject *shardd_call_set_limits(PyObject *self, PyObject *args);
PyObject *shardd_call_set_window(PyObject *self, PyObject *args);
PyObject *shardd_call_set_send_limits(PyObject *self, PyObject *args);
PyObject *shardd_call_set_readonly(PyObject *self, PyObject *args);
PyObject *shardd_call_set_paused(PyObject *self, PyObject *args);
PyObject *shardd_call_clean(PyObject *self, PyObject *args);
PyObject *shardd_call_lease(PyObject *self, PyObject *args);
PyObject *shardd_call_oldest_segment(PyObject *self, PyObject *args);
PyObject *shardd_call_drop_oldest(PyObject *self, PyObject *args);
PyObject *shardd_call_roll_early(PyObject *self, PyObject *args);
PyObject *shardd_call_slowest(PyObject *self, PyObject *arg);

/* binding/engine_clock.c */
PyObject *shardd_call_expiry_clock(PyObject *self, PyObject *unused);
PyObject *shardd_call_now_us(PyObject *self, PyObject *unused);
PyObject *shardd_call_stamp_us(PyObject *self, PyObject *unused);
PyObject *shardd_call_session_number(PyObject *self, PyObject *unused);
PyObject *shardd_shared_clock_begin(PyObject *module, PyObject *args);
PyObject *shardd_clock_first_younger(PyObject *module, PyObject *args);

/* binding/engine_routes.c */
PyObject *shardd_call_route_topic_known(PyObject *self, PyObject *arg);
PyObject *shardd_call_route_topic_put(PyObject *self, PyObject *args);
PyObject *shardd_call_route_put(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *shardd_call_routes_end_user(PyObject *self, PyObject *arg);
PyObject *shardd_call_routes_end_topic(PyObject *self, PyObject *arg);
PyObject *shardd_call_routes_end_stream(PyObject *self, PyObject *arg);
PyObject *shardd_call_routes_end_all(PyObject *self, PyObject *unused);
PyObject *shardd_call_users_begin(PyObject *self, PyObject *unused);
PyObject *shardd_call_user_put(PyObject *self, PyObject *arg);
PyObject *shardd_call_user_drop(PyObject *self, PyObject *arg);

/* binding/engine_producers.c */
PyObject *shardd_call_producers_begin(PyObject *self, PyObject *args);
PyObject *shardd_call_producer_put(PyObject *self, PyObject *args);
PyObject *shardd_call_producer_drop(PyObject *self, PyObject *arg);

/* binding/engine_groups.c */
PyObject *shardd_call_seat_put(PyObject *self, PyObject *args);
PyObject *shardd_call_seat_take(PyObject *self, PyObject *args);
PyObject *shardd_call_fence_drop(PyObject *self, PyObject *args);

/* binding/engine_clients.c */
PyObject *shardd_call_change_limits(PyObject *self, PyObject *args);
PyObject *shardd_call_client_enter(PyObject *self, PyObject *args);
PyObject *shardd_call_client_leave(PyObject *self, PyObject *args);
PyObject *shardd_call_client_authenticated(PyObject *self, PyObject *arg);

/* binding/engine_callers.c */
PyObject *shardd_call_call_append(PyObject *self, PyObject *args);
PyObject *shardd_call_call_prepare(PyObject *self, PyObject *args);
PyObject *shardd_call_call_fill(PyObject *self, PyObject *args);
PyObject *shardd_call_call_read(PyObject *self, PyObject *args);
PyObject *shardd_call_call_store(PyObject *self, PyObject *args);
PyObject *shardd_call_call_wait(PyObject *self, PyObject *args);
PyObject *shardd_call_call_next(PyObject *self, PyObject *arg);
PyObject *shardd_call_call_cancel(PyObject *self, PyObject *arg);
PyObject *shardd_call_balance(PyObject *self, PyObject *args);

/* binding/engine_statistics.c */
PyObject *shardd_call_stats(PyObject *self, PyObject *arg);
PyObject *shardd_call_stats_sums(PyObject *self, PyObject *args);
PyObject *shardd_call_group_lag(PyObject *self, PyObject *args);

/* binding/engine_logins.c */
PyObject *shardd_call_login_failures(PyObject *self, PyObject *args);
PyObject *shardd_call_login_begin(PyObject *self, PyObject *args);
PyObject *shardd_call_login_take_back(PyObject *self, PyObject *args);
PyObject *shardd_call_login_clear(PyObject *self, PyObject *args);
PyObject *shardd_call_login_moment(PyObject *self, PyObject *args);
PyObject *shardd_call_login_remember(PyObject *self, PyObject *args);
PyObject *shardd_call_login_is_known(PyObject *self, PyObject *args);

/* binding/engine_partitions.c: a partition that is open here, or NULL with KeyError. What changes one names its
 * incarnation, too: another one may be in its place by now. */
struct owned *shardd_partition_at(PyObject *self, unsigned long long ns);
struct owned *shardd_partition_named(PyObject *self, unsigned long long ns, unsigned long long incarnation);

/* binding/engine_partitions.c, binding/engine_counters.c: rows of the same table. */
PyObject *shardd_segment_row(const segment_info *s); /* binding/recover.c */
PyObject *shardd_call_partition_open(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_segments(PyObject *self, PyObject *arg);
PyObject *shardd_call_partition_surveyed(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_change_layout(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_damage(PyObject *self, PyObject *arg);
PyObject *shardd_call_partition_close(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_flush(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_sync_lost(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_sync(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_set_level(PyObject *self, PyObject *args);
PyObject *shardd_call_partition_is_durable(PyObject *self, PyObject *arg);
PyObject *shardd_call_offsets_unused(PyObject *self, PyObject *args);
PyObject *shardd_call_offset_get(PyObject *self, PyObject *args);
PyObject *shardd_call_offset_delete(PyObject *self, PyObject *args);
PyObject *shardd_call_offset_store(PyObject *self, PyObject *args);
PyObject *shardd_call_flush_all(PyObject *self, PyObject *unused);
PyObject *shardd_call_flush_all_done(PyObject *self, PyObject *arg);
PyObject *shardd_call_counters(PyObject *self, PyObject *unused);
PyObject *shardd_call_gauges(PyObject *self, PyObject *unused);
PyObject *shardd_call_latency(PyObject *self, PyObject *unused);
PyObject *shardd_call_samples(PyObject *self, PyObject *unused);

/* binding/results.c: results with named fields (_native.pyi). */
typedef enum shardd_result_type {
    SHARDD_STATS,
    SHARDD_STATS_SUMS,
    SHARDD_GROUP_LAG,
    SHARDD_SAMPLE,
    SHARDD_TURN,
    SHARDD_SEGMENT,
    SHARDD_WITHHELD_RANGE,
    SHARDD_RECOVERED,
    SHARDD_DELETED_SEGMENTS,
    SHARDD_CLEANED,
    SHARDD_OLDEST,
    SHARDD_CLOCK,
    SHARDD_STORED_OFFSET,
    SHARDD_UNUSED_OFFSET,
    SHARDD_UNUSED_PAGE,
    SHARDD_SCAN,
    SHARDD_INDEXED_SCAN,
    SHARDD_FOUND_RECORD,
    SHARDD_SEND_REQUEST,
    SHARDD_SENT_BATCH,
    SHARDD_SEAT_PARTITION,
    SHARDD_SEAT_STATE,
    SHARDD_ACCEPTED,
    SHARDD_CLOSED,
    SHARDD_REQUEST,
    SHARDD_ROUTE_MISS,
    SHARDD_MOVE,
    SHARDD_MOVED_IN,
    SHARDD_DOUBT,
    SHARDD_POISONED,
    SHARDD_GROUP_POLLED,
    SHARDD_ROOM,
    SHARDD_SYNCED,
    SHARDD_ROLLED,
    SHARDD_RESUMED,
    SHARDD_CALL,
    SHARDD_CERTIFIED,
    SHARDD_RESULTS
} shardd_result_type;
int shardd_results_add(PyObject *module);
/* Takes the items over, also on a failure: NULL when one of them is NULL. Exactly as many as the type has fields. */
PyObject *shardd_result_of(shardd_result_type type, PyObject *const *items, int count);
#define SHARDD_RESULT(type, ...) \
    shardd_result_of(type, (PyObject *[]){__VA_ARGS__}, (int)(sizeof((PyObject *[]){__VA_ARGS__}) / sizeof(PyObject *)))
#define SHARDD_NUMBER(value) PyLong_FromUnsignedLongLong(value)
#define SHARDD_SIGNED(value) PyLong_FromLongLong(value)
#define SHARDD_BYTES(data, length) PyBytes_FromStringAndSize((const char *)(data), (Py_ssize_t)(length))

struct engine;
typedef struct engine_object {
    PyObject_HEAD
    struct engine *engine; /* NULL after close() */
} engine_object;
/* The engine behind `self`, or NULL with RuntimeError after close(). */
struct engine *shardd_engine_of(PyObject *self);
struct event;
PyObject *shardd_call_event(struct engine *e, const struct event *v); /* EVENT_CALL; engine_callers.c */
#endif
