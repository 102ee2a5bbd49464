/* Functions of the module for compressed segments: one block at a time. */
#include "binding.h"

#include "log/blocks.h"
#include "log/codec.h"

static bool known(unsigned number) {
    if (codec_is_known(number)) return true;
    PyErr_Format(PyExc_ValueError, "codec %u is not known", number);
    return false;
}

static PyObject *call_pack_block(PyObject *module, PyObject *args) {
    Py_buffer plain;
    unsigned number;
    int level;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Ii", &plain, &number, &level)) return NULL;
    bool possible = known(number);
    uint8_t *packed = possible ? PyMem_Malloc((size_t)plain.len + 1) : NULL;
    if (possible && packed == NULL) PyErr_NoMemory();
    PyObject *result = NULL;
    if (packed != NULL) {
        size_t length = 0;
        Py_BEGIN_ALLOW_THREADS
        if (plain.len > 0)
            length = codec_pack((codec)number, level, plain.buf, (size_t)plain.len, packed, (size_t)plain.len - 1);
        Py_END_ALLOW_THREADS
        result = PyBytes_FromStringAndSize((const char *)packed, (Py_ssize_t)length);
    }
    PyMem_Free(packed);
    PyBuffer_Release(&plain);
    return result;
}

static PyObject *call_unpack_block(PyObject *module, PyObject *args) {
    Py_buffer packed;
    unsigned number;
    Py_ssize_t size;
    uint8_t plain[BLOCK_PLAIN_BYTES];
    bool whole = false;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*In", &packed, &number, &size)) return NULL;
    bool possible = size > 0 && size <= (Py_ssize_t)sizeof plain;
    if (!possible) PyErr_SetString(PyExc_ValueError, "no block has this size");
    possible = possible && known(number);
    if (possible) {
        Py_BEGIN_ALLOW_THREADS
        whole = codec_unpack((codec)number, packed.buf, (size_t)packed.len, plain, (size_t)size);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    if (!possible) return NULL;
    if (!whole) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)plain, size);
}

PyMethodDef shardd_blocks_methods[] = {
    {"pack_block", call_pack_block, METH_VARARGS, "The packed form of a block; empty when it is not smaller."},
    {"unpack_block", call_unpack_block, METH_VARARGS, "The plain bytes of a block; None when it is damaged."},
    {NULL, NULL, 0, NULL},
};
