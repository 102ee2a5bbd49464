/* Module init of shardd.engine._native: constants, the Engine type and functions that need no engine. No logic. */
#include "binding.h"

#include <errno.h>

#include "base/status.h"
#include "engine/engine.h"
#include "log/expiry_clock.h"
#include "log/producers.h"
#include "log/record.h"

static PyObject *shared_region_bytes(PyObject *module, PyObject *arg) {
    (void)module;
    long shards = PyLong_AsLong(arg);
    if (shards == -1 && PyErr_Occurred()) return NULL;
    if (shards < 1 || shards > (long)SHARED_SHARDS_MAX)
        return PyErr_Format(PyExc_ValueError, "shards must be 1..%u", SHARED_SHARDS_MAX);
    return PyLong_FromSize_t(links_region_bytes((uint32_t)shards));
}

static PyObject *shared_region_format(PyObject *module, PyObject *args) {
    int fd;
    unsigned shards;
    (void)module;
    if (!PyArg_ParseTuple(args, "iI", &fd, &shards)) return NULL;
    int result = links_region_format(fd, shards);
    if (result != 0) {
        errno = -result;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *worker_beat(PyObject *module, PyObject *args) {
    int fd;
    unsigned shard;
    uint64_t beat;
    uint32_t activity;
    (void)module;
    if (!PyArg_ParseTuple(args, "iI", &fd, &shard)) return NULL;
    int result = links_read_beat(fd, shard, &beat, &activity);
    if (result != 0) {
        errno = -result;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("KI", (unsigned long long)beat, activity);
}

static PyObject *probe(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    const char *reason = io_ring_probe();
    return PyUnicode_FromString(reason != NULL ? reason : "");
}

static PyMethodDef functions[] = {
    {"shared_region_bytes", shared_region_bytes, METH_O, "Size of the shared region for so many shards."},
    {"shared_region_format", shared_region_format, METH_VARARGS, "Sizes a fresh memfd and writes its header."},
    {"shared_clock_begin", shardd_shared_clock_begin, METH_VARARGS, "What time it is for all workers to come."},
    {"clock_first_younger", shardd_clock_first_younger, METH_VARARGS, "The first stamp of what has not that age."},
    {"worker_beat", worker_beat, METH_VARARGS, "(beat, activity) of a shard's worker, from the shared region."},
    {"probe", probe, METH_NOARGS, "'' when io_uring can be used here, else the reason."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "shardd.engine._native",
                                        .m_doc = "Native engine of shardd.", .m_size = -1, .m_methods = functions};

typedef struct constant {
    const char *name;
    long value;
} constant;
static const constant constants[] = {
    {"CALL_STATUS", CALL_STATUS},
    {"CALL_WINDOW", CALL_WINDOW},
    {"CALL_LAST_WINDOW", CALL_LAST_WINDOW},
    {"CALL_GONE", CALL_GONE},
    {"CALL_AGAIN", CALL_AGAIN},
    {"CALL_LET_GO", CALL_LET_GO},
    {"CALLS_MAX", CALLS_MAX},
    {"LISTENER_TCP", LISTENER_TCP},
    {"LISTENER_UNIX", LISTENER_UNIX},
    {"LISTENER_WEBSOCKET", LISTENER_WEBSOCKET},
    {"ACTIVITY_STARTING", ACTIVITY_STARTING},
    {"ACTIVITY_PYTHON", ACTIVITY_PYTHON},
    {"ACTIVITY_ENGINE", ACTIVITY_ENGINE},
    {"ACTIVITY_WAITING", ACTIVITY_WAITING},
    {"RECORD_HEADER_SIZE", RECORD_HEADER_SIZE},
    {"INDEX_ENTRY_SIZE", INDEX_ENTRY_SIZE},
    {"PAYLOAD_SIZE_MAX", PAYLOAD_SIZE_MAX},
    {"USER_HEADERS_SIZE_MAX", USER_HEADERS_SIZE_MAX},
    {"RECORD_OK", RECORD_OK},
    {"RECORD_TRUNCATED", RECORD_TRUNCATED},
    {"RECORD_BAD_LENGTH", RECORD_BAD_LENGTH},
    {"RECORD_BAD_OFFSET", RECORD_BAD_OFFSET},
    {"RECORD_BAD_TIMESTAMP", RECORD_BAD_TIMESTAMP},
    {"RECORD_BAD_CHECKSUM", RECORD_BAD_CHECKSUM},
    {"PRODUCERS_FILE_BYTES_MAX", PRODUCERS_FILE_BYTES_MAX},
    {"PRODUCERS_FILE_READ_MAX", PRODUCERS_FILE_READ_MAX},
    {"LEVEL_WRITTEN", LEVEL_WRITTEN},
    {"LEVEL_MEMORY", LEVEL_MEMORY},
    {"LEVEL_DURABLE", LEVEL_DURABLE},
    {"CLOCK_STEP_US", CLOCK_STEP_US},
    {"OFFSET_CONSUMER", OFFSET_CONSUMER},
    {"OFFSET_GROUP", OFFSET_GROUP},
    {"DIALECT_CLASSIC", DIALECT_CLASSIC},
    {"DIALECT_IGGY09", DIALECT_IGGY09},
    {"DIALECT_UNNAMED", DIALECT_UNNAMED},
};
#define CONSTANT(name, number) {"STATUS_" #name, number},
static const constant statuses[] = {STATUS_TABLE(CONSTANT)};

static bool add_constants(PyObject *module, const constant *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (PyModule_AddIntConstant(module, list[i].name, list[i].value) != 0) return false;
    return true;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *engine_type = shardd_make_engine_type();
    bool good = engine_type != NULL && PyModule_AddFunctions(module, shardd_pure_methods) == 0 &&
                PyModule_AddFunctions(module, shardd_memory_methods) == 0 &&
                PyModule_AddFunctions(module, shardd_recover_methods) == 0 &&
                PyModule_AddFunctions(module, shardd_blocks_methods) == 0 &&
                PyModule_AddFunctions(module, shardd_tls_methods) == 0 && shardd_results_add(module) == 0 &&
                PyModule_AddObjectRef(module, "Engine", engine_type) == 0 &&
                add_constants(module, constants, sizeof constants / sizeof constants[0]) &&
                add_constants(module, statuses, sizeof statuses / sizeof statuses[0]);
    Py_XDECREF(engine_type);
    if (good) return module;
    Py_DECREF(module);
    return NULL;
}
