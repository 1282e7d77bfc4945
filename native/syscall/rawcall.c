/*
 * nvc.linux._raw: syscall(2) for Python, and standby.h. The stable ABI: one file serves every Python from 3.11 on.
 *
 * nvc.linux.raw_ctypes is the fallback for system calls where this was not built. The reason for this module: the
 * import of ctypes takes longer than all system calls of a container's start together. Runs on the calling thread,
 * under the GIL.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "syscall/standby.h"

enum { MAX_ARGUMENTS = 6 };

/* One argument as the word that the kernel gets. Buffers stay exported (and so in place) until the call is over. */
static int word_of (PyObject *value, long *word, Py_buffer *view, int *held)
{
    if (value == Py_None) {
        *word = 0;
        return 0;
    }
    if (PyLong_Check (value)) {
        /* Modulo 2^64, as C converts: -1 and 0xFFFFFFFFFFFFFFFF are the same word. */
        unsigned long long number = PyLong_AsUnsignedLongLongMask (value);
        if (number == (unsigned long long) -1 && PyErr_Occurred () != NULL)
            return -1;
        *word = (long) number;
        return 0;
    }
    if (PyObject_GetBuffer (value, view, PyBUF_SIMPLE) < 0)
        return -1;
    *held = 1;
    *word = (long) (intptr_t) view->buf;
    return 0;
}

static PyObject *raw_call (PyObject *self, PyObject *arguments)
{
    (void) self;
    Py_ssize_t count = PyTuple_Size (arguments);
    if (count < 1 || count > 1 + MAX_ARGUMENTS) {
        PyErr_SetString (PyExc_TypeError, "call takes a number and up to 6 arguments");
        return NULL;
    }
    long words[1 + MAX_ARGUMENTS] = { 0 };
    Py_buffer views[1 + MAX_ARGUMENTS];
    int held[1 + MAX_ARGUMENTS] = { 0 };
    PyObject *result = NULL;
    Py_ssize_t index;
    for (index = 0; index < count; index++)
        if (word_of (PyTuple_GetItem (arguments, index), &words[index], &views[index], &held[index]) < 0)
            goto out;
    errno = 0;
    long answer = syscall (words[0], words[1], words[2], words[3], words[4], words[5], words[6]);
    result = PyLong_FromLong (answer == -1 && errno != 0 ? -(long) errno : answer);
out:
    for (index = 0; index < count; index++)
        if (held[index])
            PyBuffer_Release (&views[index]);
    return result;
}

static PyObject *raw_address (PyObject *self, PyObject *buffer)
{
    (void) self;
    Py_buffer view;
    if (PyObject_GetBuffer (buffer, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    PyObject *result = PyLong_FromVoidPtr (view.buf);
    PyBuffer_Release (&view);
    return result;
}

static PyObject *raw_standby (PyObject *self, PyObject *arguments)
{
    (void) self;
    const char *orders, *filter, *ranges;
    Py_ssize_t sizes[3];
    if (!PyArg_ParseTuple (arguments, "y#y#y#", &orders, &sizes[0], &filter, &sizes[1], &ranges, &sizes[2]))
        return NULL;
    if (sizes[0] != sizeof (struct standby_orders) || sizes[2] % (Py_ssize_t) sizeof (struct standby_range) != 0) {
        PyErr_SetString (PyExc_ValueError, "orders or ranges of another size");
        return NULL;
    }
    return PyLong_FromLong (standby (orders, filter, (size_t) sizes[1], ranges, (size_t) sizes[2] / sizeof (struct standby_range)));
}

static PyMethodDef methods[] = {
    { "call", raw_call, METH_VARARGS,
      "call(number, *arguments): the result, or minus errno. Integers, buffers (their address) and None (0)." },
    { "address", raw_address, METH_O, "address(bytearray): where it lies; good while it lives and keeps its length." },
    { "standby", raw_standby, METH_VARARGS,
      "standby(orders, filter, ranges): wait to become a program, without memory; minus errno where that cannot be." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = { PyModuleDef_HEAD_INIT, "nvc.linux._raw", NULL, 0, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__raw (void);
PyMODINIT_FUNC PyInit__raw (void) { return PyModuleDef_Init (&definition); }
