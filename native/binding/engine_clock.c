/* Methods of Engine about the clocks that all workers share, and their begin. */
#include "binding.h"

#include "engine/engine_api.h"

#include <errno.h>

static expiry_clock *clock_of(PyObject *self) {
    engine *e = shardd_engine_of(self);
    return e != NULL ? &e->core.expiry : NULL;
}

PyObject *shardd_call_expiry_clock(PyObject *self, PyObject *unused) {
    (void)unused;
    expiry_clock *c = clock_of(self);
    if (c == NULL) return NULL;
    clock_memory m;
    expiry_clock_recall(c, &m);
    const shared_clock *s = c->shared;
    return SHARDD_RESULT(SHARDD_CLOCK, SHARDD_NUMBER(m.believed_us), SHARDD_NUMBER(m.stamps_us),
                         SHARDD_SIGNED(s->jump_us), SHARDD_NUMBER(s->jumps), SHARDD_NUMBER(m.believed_doubted_us),
                         SHARDD_NUMBER(m.stamps_doubted_us),
                         PyBytes_FromStringAndSize((const char *)m.doubts, sizeof m.doubts),
                         SHARDD_NUMBER(s->doubts_ended), SHARDD_NUMBER(m.since_boot_us));
}

PyObject *shardd_call_now_us(PyObject *self, PyObject *unused) {
    (void)unused;
    expiry_clock *c = clock_of(self);
    return c != NULL ? PyLong_FromUnsignedLongLong(expiry_clock_now(c)) : NULL;
}

PyObject *shardd_call_stamp_us(PyObject *self, PyObject *unused) {
    (void)unused;
    expiry_clock *c = clock_of(self);
    return c != NULL ? PyLong_FromUnsignedLongLong(expiry_clock_stamp(c)) : NULL;
}

PyObject *shardd_call_session_number(PyObject *self, PyObject *unused) {
    (void)unused;
    expiry_clock *c = clock_of(self);
    return c != NULL ? PyLong_FromUnsignedLongLong(expiry_clock_session_number(c)) : NULL;
}

/* What a clock has to know of the doubts that have ended. */
static bool read_doubts(clock_memory *m, const char *doubts, Py_ssize_t length) {
    if (length != (Py_ssize_t)sizeof m->doubts) {
        PyErr_Format(PyExc_ValueError, "the doubts that have ended are %zu bytes", sizeof m->doubts);
        return false;
    }
    memcpy(m->doubts, doubts, sizeof m->doubts);
    return true;
}

/* Of the module, so that helper threads may ask without the engine. */
PyObject *shardd_clock_first_younger(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long now_us, stamp_us, age_us;
    const char *doubts;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "KKKy#", &now_us, &stamp_us, &age_us, &doubts, &length)) return NULL;
    clock_memory m = {.believed_us = now_us, .stamps_us = stamp_us};
    if (!read_doubts(&m, doubts, length)) return NULL;
    expiry_clock c = expiry_clock_of_system();
    c.own.jump_max_us = 1; /* or the tracks would be taken for one */
    expiry_clock_begin(&c, &m);
    return PyLong_FromUnsignedLongLong(expiry_clock_first_younger(&c, now_us, age_us));
}

PyObject *shardd_shared_clock_begin(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    unsigned long long jump_max_us, v[4], since_boot_us;
    const char *doubts;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "iKKKKKy#K", &fd, &jump_max_us, &v[0], &v[1], &v[2], &v[3], &doubts, &length,
                          &since_boot_us))
        return NULL;
    clock_memory m = {v[0], v[1], v[2], v[3], {{0}}, since_boot_us};
    if (!read_doubts(&m, doubts, length)) return NULL;
    expiry_clock c = expiry_clock_of_system();
    c.own.jump_max_us = jump_max_us;
    expiry_clock_begin(&c, &m);
    int result = links_write_clock(fd, &c.own);
    if (result == 0) Py_RETURN_NONE;
    errno = -result;
    return PyErr_SetFromErrno(PyExc_OSError);
}
