/* TLS: what the engine may show to clients, and what can be said of it without an engine. Certificates and keys come as
 * PEM; what is wrong with them is a ValueError with the end of a sentence and the number of the pair, or None. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine_api.h"

/* `bytes` lives as long as its owner. */
static bool read_text(PyObject *object, tls_text *out) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) != 0) return false;
    if (length > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "it is too long");
        return false;
    }
    *out = (tls_text){.bytes = bytes, .length = (size_t)length};
    return true;
}

/* (pairs, clients, clients_ca, only_13, ciphers), behind a port when one is wanted; borrowed from the arguments. */
static bool read_settings(PyObject *args, tls_settings *out, tls_port *port) {
    PyObject *pairs, *clients_ca;
    unsigned clients, number = 0;
    int only_13;
    memset(out, 0, sizeof *out);
    bool parsed = port == NULL ? PyArg_ParseTuple(args, "OIOps", &pairs, &clients, &clients_ca, &only_13, &out->ciphers)
                               : PyArg_ParseTuple(args, "IOIOps", &number, &pairs, &clients, &clients_ca, &only_13,
                                                  &out->ciphers);
    if (!parsed) return false;
    if (number >= TLS_PORTS) {
        PyErr_SetString(PyExc_ValueError, "there is no such port");
        return false;
    }
    if (port != NULL) *port = (tls_port)number;
    if (!PyList_Check(pairs) || PyList_Size(pairs) < 1 || PyList_Size(pairs) > (Py_ssize_t)TLS_PAIRS_MAX ||
        clients > TLS_CLIENTS_REQUIRED) {
        PyErr_SetString(PyExc_ValueError, "one to 16 pairs, clients 0 to 2");
        return false;
    }
    out->count = (uint32_t)PyList_Size(pairs);
    out->clients = (tls_clients)clients;
    out->only_13 = only_13 != 0;
    for (uint32_t i = 0; i < out->count; i++) {
        PyObject *pair = PyList_GetItem(pairs, i);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_ValueError, "a pair is (chain, key)");
            return false;
        }
        if (!read_text(PyTuple_GetItem(pair, 0), &out->pairs[i].chain)) return false;
        if (!read_text(PyTuple_GetItem(pair, 1), &out->pairs[i].key)) return false;
    }
    return read_text(clients_ca, &out->clients_ca);
}

static void set_fault(const char *why, uint32_t pair) {
    PyObject *number = pair < TLS_PAIRS_MAX ? PyLong_FromUnsignedLong(pair) : Py_BuildValue("");
    PyObject *value = number != NULL ? Py_BuildValue("(sN)", why, number) : NULL;
    if (value != NULL) PyErr_SetObject(PyExc_ValueError, value);
    Py_XDECREF(value);
}

PyObject *shardd_call_use_tls(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    tls_settings settings;
    tls_port port;
    uint32_t pair;
    if (e == NULL || !read_settings(args, &settings, &port)) return NULL;
    const char *why = engine_use_tls(e, port, &settings, &pair);
    if (why == NULL) Py_RETURN_NONE;
    set_fault(why, pair);
    return NULL;
}

PyObject *shardd_call_use_tickets(PyObject *self, PyObject *args) {
    engine *e = shardd_engine_of(self);
    Py_buffer secret;
    long long period;
    if (e == NULL || !PyArg_ParseTuple(args, "y*L", &secret, &period)) return NULL;
    bool good = secret.len == TLS_SECRET_BYTES;
    if (good) engine_use_tickets(e, secret.buf, period);
    PyBuffer_Release(&secret);
    if (good) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a secret has 32 bytes");
    return NULL;
}

static PyObject *tls_inspect(PyObject *module, PyObject *args) {
    (void)module;
    tls_settings settings;
    tls_fault fault;
    if (!read_settings(args, &settings, NULL)) return NULL;
    tls_context *made = tls_context_make(&settings, &fault);
    if (made == NULL) {
        set_fault(fault.why, fault.pair);
        return NULL;
    }
    PyObject *list = PyList_New(settings.count);
    for (uint32_t i = 0; list != NULL && i < settings.count; i++) {
        PyObject *end = PyLong_FromLongLong(tls_context_not_after_s(made, i));
        if (end == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, i, end);
    }
    tls_context_let_go(made);
    return list;
}

static PyObject *self_signed(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    char *chain, *key;
    bool good = tls_self_signed(&chain, &key);
    PyObject *result = good ? Py_BuildValue("(yy)", chain, key) : PyErr_NoMemory();
    free(chain);
    free(key);
    return result;
}

PyMethodDef shardd_tls_methods[] = {
    {"tls_inspect", tls_inspect, METH_VARARGS, "When each certificate ends, in seconds of unix time."},
    {"tls_self_signed", self_signed, METH_NOARGS, "A certificate for localhost and its key, PEM."},
    {NULL, NULL, 0, NULL},
};
