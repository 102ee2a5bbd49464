/* Functions of shardd.spark._decode that make frames. Contract: shardd/spark/_decode.pyi. */
#ifndef SHARDD_ENCODE_CALL_H
#define SHARDD_ENCODE_CALL_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *encode_call(PyObject *module, PyObject *args);
PyObject *ids_call(PyObject *module, PyObject *args);
PyObject *digests_call(PyObject *module, PyObject *args);
PyObject *partitions_call(PyObject *module, PyObject *args);
#endif
