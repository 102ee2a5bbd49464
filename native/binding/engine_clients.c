/* Rows of the engine's table: clients that come through a door, counted like connections (src/net/admission.h), and the
 * limits of all of them. */
#include "binding.h"
#include "engine/engine.h"
#include "engine/engine_api.h"
#include "net/admission.h"

/* false: a Python error is set. */
static bool network_of(const engine *e, const char *host, uint64_t *network) {
    struct sockaddr_storage address = {0};
    if (!admission_parse_host(host, &address)) {
        PyErr_Format(PyExc_ValueError, "%s is no IP address", host);
        return false;
    }
    *network = admission_network(&e->core.links, &address);
    return true;
}

PyObject *shardd_call_change_limits(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    engine_options o = {0};
    long long login_ms, idle_ms, request_ms, partial_ms, slow_ms;
    if (e == NULL || !PyArg_ParseTuple(args, "IILLLLL", &o.limits.per_address, &o.limits.before_login, &login_ms,
                                       &idle_ms, &request_ms, &partial_ms, &slow_ms))
        return NULL;
    o.login_timeout_us = login_ms * 1000;
    o.idle_timeout_us = idle_ms * 1000;
    o.request_timeout_us = request_ms * 1000;
    o.partial_frame_timeout_us = partial_ms * 1000;
    o.slow_reader_timeout_us = slow_ms * 1000;
    engine_change_limits(e, &o);
    Py_RETURN_NONE;
}

PyObject *shardd_call_client_enter(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    const char *host;
    uint64_t network;
    if (e == NULL || !PyArg_ParseTuple(args, "s", &host) || !network_of(e, host, &network)) return NULL;
    core_counters *counters = &e->core.counters;
    switch (admission_enter(&e->core.links, e->core.peer_is_down, &e->net.options.limits, network)) {
    case ADMITTED: counters->accepted++; Py_RETURN_TRUE;
    case REFUSED_ADDRESS: counters->refused_by_address++; break;
    case REFUSED_BEFORE_LOGIN: counters->refused_before_login++; break;
    case REFUSED_TOTAL: counters->refused_connections++; break;
    }
    Py_RETURN_FALSE;
}

PyObject *shardd_call_client_leave(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    const char *host;
    int authenticated;
    uint64_t network;
    if (e == NULL || !PyArg_ParseTuple(args, "sp", &host, &authenticated) || !network_of(e, host, &network))
        return NULL;
    admission_leave(&e->core.links, network, !authenticated);
    Py_RETURN_NONE;
}

PyObject *shardd_call_client_authenticated(PyObject *self, PyObject *arg) {
    engine *e = shardd_engine_of(self);
    int authenticated = PyObject_IsTrue(arg);
    if (e == NULL || authenticated < 0) return NULL;
    admission_anonymous(&e->core.links, authenticated ? -1 : 1);
    Py_RETURN_NONE;
}
