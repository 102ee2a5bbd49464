/* Rows of the engine's table: logins (src/logins.h). Keys are bytes, hashed here. */
#include "binding.h"
#include "engine/engine.h"
#include "net/logins.h"

static uint64_t key_of(const engine *e, const Py_buffer *text) {
    return logins_key(&e->core.links, text->buf, (size_t)text->len);
}

PyObject *shardd_call_login_failures(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    Py_buffer text;
    unsigned long long now_us;
    if (e == NULL || !PyArg_ParseTuple(args, "y*K", &text, &now_us)) return NULL;
    uint32_t failures = logins_failures(&e->core.links, key_of(e, &text), now_us);
    PyBuffer_Release(&text);
    return PyLong_FromUnsignedLong(failures);
}

static PyObject *change(PyObject *self, PyObject *args, void (*call)(links *, uint64_t, uint64_t)) {
    engine *e = shardd_engine_of(self);
    Py_buffer text;
    unsigned long long now_us;
    if (e == NULL || !PyArg_ParseTuple(args, "y*K", &text, &now_us)) return NULL;
    call(&e->core.links, key_of(e, &text), now_us);
    PyBuffer_Release(&text);
    Py_RETURN_NONE;
}

PyObject *shardd_call_login_begin(PyObject *self, PyObject *args) { return change(self, args, logins_begin); }
PyObject *shardd_call_login_take_back(PyObject *self, PyObject *args) { return change(self, args, logins_take_back); }
PyObject *shardd_call_login_clear(PyObject *self, PyObject *args) { return change(self, args, logins_clear); }

PyObject *shardd_call_login_moment(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    Py_buffer text;
    unsigned long long now_us, wait_us;
    if (e == NULL || !PyArg_ParseTuple(args, "y*KK", &text, &now_us, &wait_us)) return NULL;
    uint64_t moment_us = logins_moment(&e->core.links, key_of(e, &text), now_us, wait_us);
    PyBuffer_Release(&text);
    return PyLong_FromUnsignedLongLong(moment_us);
}

PyObject *shardd_call_login_remember(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    Py_buffer account, pair;
    unsigned long long now_us;
    if (e == NULL || !PyArg_ParseTuple(args, "y*y*K", &account, &pair, &now_us)) return NULL;
    logins_remember(&e->core.links, key_of(e, &account), key_of(e, &pair), now_us);
    PyBuffer_Release(&account);
    PyBuffer_Release(&pair);
    Py_RETURN_NONE;
}

PyObject *shardd_call_login_is_known(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    Py_buffer account, pair;
    unsigned long long now_us, age_us;
    if (e == NULL || !PyArg_ParseTuple(args, "y*y*KK", &account, &pair, &now_us, &age_us)) return NULL;
    bool known = logins_is_known(&e->core.links, key_of(e, &account), key_of(e, &pair), now_us, age_us);
    PyBuffer_Release(&account);
    PyBuffer_Release(&pair);
    return PyBool_FromLong(known);
}
