/* NUMA memory policy: functions of the module. */
#include "binding.h"

#include <errno.h>

#include "base/memory_policy.h"

static PyObject *none_or_error(int result) {
    if (result == 0) Py_RETURN_NONE;
    errno = -result;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *bind_thread(PyObject *module, PyObject *args) {
    unsigned node;
    (void)module;
    return PyArg_ParseTuple(args, "I", &node) ? none_or_error(memory_bind_thread(node)) : NULL;
}

static PyObject *bind_memfd(PyObject *module, PyObject *args) {
    int fd;
    unsigned long long bytes;
    unsigned node;
    (void)module;
    if (!PyArg_ParseTuple(args, "iKI", &fd, &bytes, &node)) return NULL;
    return none_or_error(memory_bind_memfd(fd, bytes, node));
}

static PyObject *policy(PyObject *module, PyObject *args) {
    int fd = -1;
    memory_policy found;
    (void)module;
    if (!PyArg_ParseTuple(args, "|i", &fd)) return NULL;
    int result = fd >= 0 ? memory_policy_of_memfd(fd, &found) : memory_policy_of_thread(&found);
    if (result != 0) return none_or_error(result);
    PyObject *nodes = PyList_New(0);
    for (uint32_t node = 0; nodes != NULL && node < MEMORY_NODES_MAX; node++)
        if (found.nodes[node / 64] >> node % 64 & 1) {
            PyObject *number = PyLong_FromUnsignedLong(node);
            if (number == NULL || PyList_Append(nodes, number) != 0) Py_CLEAR(nodes);
            Py_XDECREF(number);
        }
    return nodes != NULL ? Py_BuildValue("iN", found.mode, nodes) : NULL;
}

PyMethodDef shardd_memory_methods[] = {
    {"memory_bind_thread", bind_thread, METH_VARARGS, "New memory of this thread comes from one NUMA node."},
    {"memory_bind_memfd", bind_memfd, METH_VARARGS, "Pages of a memfd come from one NUMA node."},
    {"memory_policy", policy, METH_VARARGS, "(mode, nodes) of this thread, or of a memfd."},
    {NULL, NULL, 0, NULL},
};
