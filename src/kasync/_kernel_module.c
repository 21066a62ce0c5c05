/* The compiled functions as the Python module kasync._kernel.
 *
 * Data are given by their addresses, where None is NULL, and rows as a list of blocks: the address of a block's first
 * row, the bytes from one row to the next, and which rows of it, or how many. They must live as long as the call.
 * Python's lock is free while a function is at work. MemoryError is raised where there is no memory.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_kernel_calls.h"

#define VERSION 5 /* of the functions below; kernel.py calls no other */

/* Converters of arguments: 1, or 0 with an exception. */
static int address(PyObject *given, void *place) {
    void *const found = given == Py_None ? NULL : PyLong_AsVoidPtr(given);
    *(void **)place = found;
    return found || !PyErr_Occurred();
}

static int six(PyObject *given, void *numbers) {
    long *n = numbers;
    return PyArg_ParseTuple(given, "llllll", n, n + 1, n + 2, n + 3, n + 4, n + 5);
}

typedef struct {
    const void **at; /* [count] to be freed */
    long count;
} Rows;

/* The rows of one block behind those that are known. */
static int add_block(PyObject *block, Rows *rows) {
    PyObject *which, *numbers = NULL;
    Py_ssize_t stride;
    char *first;
    if (!PyArg_ParseTuple(block, "O&nO", address, &first, &stride, &which)) return 0;
    if (!PyLong_Check(which) && !(numbers = PySequence_Fast(which, "rows: a number or a sequence"))) return 0;
    const Py_ssize_t count = numbers ? PySequence_Fast_GET_SIZE(numbers) : PyLong_AsSsize_t(which);
    const void **const longer = PyMem_Realloc(rows->at, (rows->count + count + 1) * sizeof(void *));
    if (longer) {
        rows->at = longer;
        for (Py_ssize_t i = 0; i < count; i++)
            longer[rows->count++] =
                first + stride * (numbers ? PyNumber_AsSsize_t(PySequence_Fast_GET_ITEM(numbers, i), NULL) : i);
    } else {
        PyErr_NoMemory();
    }
    Py_XDECREF(numbers);
    return !PyErr_Occurred();
}

/* The last argument of a function, so that nothing else can fail once there is something to free. */
static int all_rows(PyObject *blocks, void *rows) {
    *(Rows *)rows = (Rows){NULL, 0};
    if (!PyList_Check(blocks)) {
        PyErr_SetString(PyExc_TypeError, "rows: must be a list of blocks");
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(blocks); i++)
        if (!add_block(PyList_GET_ITEM(blocks, i), rows)) {
            PyMem_Free(((Rows *)rows)->at);
            return 0;
        }
    return 1;
}

#define FUNCTION(name) static PyObject *name(PyObject *module, PyObject *given)
#define TAKE(...) \
    if (!PyArg_ParseTuple(given, __VA_ARGS__)) return NULL
#define CALL(...)              \
    int result;                \
    Py_BEGIN_ALLOW_THREADS;    \
    result = __VA_ARGS__;      \
    Py_END_ALLOW_THREADS
#define NOTHING_OR_NO_MEMORY \
    if (result == 1) return PyErr_NoMemory(); \
    Py_RETURN_NONE

FUNCTION(level) {
    int limit;
    TAKE("i", &limit);
    return PyLong_FromLong(kasync_level(limit));
}

FUNCTION(gram) {
    Rows rows;
    long width, threads;
    int is_double;
    double *out;
    TAKE("lplO&O&", &width, &is_double, &threads, address, &out, all_rows, &rows);
    CALL(kasync_gram(rows.at, rows.count, width, is_double, threads, out));
    PyMem_Free(rows.at);
    NOTHING_OR_NO_MEMORY;
}

/* Whether everything is finite, as far as that was in doubt. */
FUNCTION(combine) {
    Rows rows;
    long width, threads, n, columns, doubtful;
    int is_double;
    double rate;
    void *coefficients, *start, *out;
    TAKE("lplO&llO&dlO&O&", &width, &is_double, &threads, address, &coefficients, &n, &columns, address, &start, &rate,
         &doubtful, address, &out, all_rows, &rows);
    if (columns != rows.count) {
        PyMem_Free(rows.at);
        return PyErr_Format(PyExc_ValueError, "coefficients [%ld, %ld]: need one column for each of %ld rows", n, columns,
                            rows.count);
    }
    CALL(kasync_combine(rows.at, rows.count, width, is_double, threads, coefficients, n, start, rate, doubtful, out));
    PyMem_Free(rows.at);
    if (result == 1) return PyErr_NoMemory();
    return PyBool_FromLong(!result);
}

FUNCTION(add_rows) {
    Rows rows;
    long width, threads;
    double *coefficients, *out;
    TAKE("lO&lO&O&", &width, address, &coefficients, &threads, address, &out, all_rows, &rows);
    CALL(kasync_add_rows((const float *const *)rows.at, rows.count, width, coefficients, threads, out));
    PyMem_Free(rows.at);
    NOTHING_OR_NO_MEMORY;
}

FUNCTION(convolve) {
    float *x, *weights, *bias, *y;
    long samples, shape[6];
    TAKE("O&O&O&lO&O&", address, &x, address, &weights, address, &bias, &samples, six, shape, address, &y);
    CALL(kasync_convolve(x, weights, bias, samples, shape, y));
    NOTHING_OR_NO_MEMORY;
}

FUNCTION(weights) {
    Rows rows;
    float *x, *grad;
    long clients, samples, shape[6];
    int has_bias;
    TAKE("O&O&llO&pO&", address, &x, address, &grad, &clients, &samples, six, shape, &has_bias, all_rows, &rows);
    CALL(kasync_weights(x, grad, clients, samples, shape, has_bias, (float *const *)rows.at));
    PyMem_Free(rows.at);
    NOTHING_OR_NO_MEMORY;
}

FUNCTION(dense) {
    Rows rows;
    float *x, *grad;
    long clients, samples, inputs, outputs;
    int has_bias;
    TAKE("O&O&llllpO&", address, &x, address, &grad, &clients, &samples, &inputs, &outputs, &has_bias, all_rows, &rows);
    CALL(kasync_dense(x, grad, clients, samples, inputs, outputs, has_bias, (float *const *)rows.at));
    PyMem_Free(rows.at);
    NOTHING_OR_NO_MEMORY;
}

FUNCTION(pool) {
    float *x, *y;
    long lines, width;
    TAKE("O&llO&", address, &x, &lines, &width, address, &y);
    CALL(kasync_pool(x, lines, width, y));
    NOTHING_OR_NO_MEMORY;
}

FUNCTION(unpool) {
    float *x, *y, *grad, *back;
    long lines, width;
    TAKE("O&O&O&llO&", address, &x, address, &y, address, &grad, &lines, &width, address, &back);
    CALL(kasync_unpool(x, y, grad, lines, width, back));
    NOTHING_OR_NO_MEMORY;
}

static PyMethodDef functions[] = {
    {"level", level, METH_VARARGS, NULL},       {"gram", gram, METH_VARARGS, NULL},
    {"combine", combine, METH_VARARGS, NULL},   {"add_rows", add_rows, METH_VARARGS, NULL},
    {"convolve", convolve, METH_VARARGS, NULL}, {"weights", weights, METH_VARARGS, NULL},
    {"dense", dense, METH_VARARGS, NULL},       {"pool", pool, METH_VARARGS, NULL},
    {"unpool", unpool, METH_VARARGS, NULL},     {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_kernel", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION) < 0) Py_CLEAR(module);
    return module;
}
