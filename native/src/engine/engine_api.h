/* What the binding calls (engine_api.c, engine.c). */
#ifndef SHARDD_ENGINE_API_H
#define SHARDD_ENGINE_API_H
#include "engine/engine.h"

/* 0 or -errno. The descriptors in the options stay the caller's. */
int engine_open(engine **out, const engine_options *options);
void engine_close(engine *e);
/* Works until an event for Python (in e->core.events), readiness of epoll_fd (true) or the timeout (-1: none). */
bool engine_turn(engine *e, int epoll_fd, int64_t timeout_us);
void engine_listen(engine *e, listener_kind kind, int fd); /* -1: nobody connects, other shards are served */
void engine_stop_listening(engine *e);
/* Other limits of connections from now on: `per_address`, `before_login` and the timeouts of `wanted`. */
void engine_change_limits(engine *e, const engine_options *wanted);
/* Answers the request that Python holds; data is copied. */
void engine_reply(engine *e, uint64_t connection, uint32_t status, const uint8_t *data, size_t length, bool close);
void engine_resume(engine *e, uint64_t connection);
/* Executes the poll that Python holds on the partition and as the consumer that `what` names. */
void engine_execute_poll(engine *e, uint64_t connection, uint32_t owner, partition_request *what);
/* A seat for the request of a member that Python holds; the caller fills it. NULL: not possible. */
seat *engine_seat_put(engine *e, uint64_t connection, uint64_t group, uint32_t count);
/* Takes a seat back (NULL: there is none); the caller frees it. Its request that is under way, if any, is in
 * `under_way`, and its end becomes EVENT_GROUP_POLLED. */
seat *engine_seat_take(engine *e, uint64_t connection, uint64_t group, seat_work *under_way);
/* What the connection, which waits for Python, speaks from now on; its request is answered in that. False: there is no
 * such dialect. */
bool engine_speak(engine *e, uint64_t connection, uint8_t number);
/* Its number in a dialect that has one, from now on; 0: none. Its requests have numbers above `request`. Returns the
 * number of the last request before. */
/* `memory`: of an earlier connection of its client, whose number and answer go on here; false: these are no such bytes.
 */
bool engine_begin_session(engine *e, uint64_t connection, uint64_t session, const uint8_t *memory, size_t length);
size_t engine_session_memory(engine *e, uint64_t connection, uint8_t out[IGGY09_MEMORY_MAX]); /* 0: there is none */
void engine_close_connection(engine *e, uint64_t connection, uint32_t status);
/* Certificates for those who connect from now on. NULL, or why not, and which pair it is about. */
const char *engine_use_tls(engine *e, tls_port port, const tls_settings *settings, uint32_t *pair);
void engine_use_tickets(engine *e, const uint8_t secret[TLS_SECRET_BYTES], int64_t period);
/* From now on every connection gets `status` as soon as its request in work is answered, and is closed. */
void engine_close_all(engine *e, uint32_t status);
bool engine_move(engine *e, uint64_t connection, uint32_t shard, const uint8_t *session, size_t length);
#endif
