/*
 * nvc.linux._raw: syscall(2) and functions of libraries for Python, and standby.h. The stable ABI: one file serves every
 * Python from 3.11 on.
 *
 * nvc.linux.raw_ctypes is the fallback where this was not built. The reason for this module: the import of ctypes takes
 * longer than all system calls of a container's start together. Runs on the calling thread; under the GIL but for
 * functions of libraries, which may wait for a device.
 */
/* No "#" in formats: compiled for 3.13, where PY_SSIZE_T_CLEAN chooses no function any more, it raises SystemError in 3.11 and 3.12. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
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

/* What is called, and up to 6 arguments. */
struct words {
    long word[1 + MAX_ARGUMENTS];
    Py_buffer view[1 + MAX_ARGUMENTS];
    int held[1 + MAX_ARGUMENTS];
};

static void release (struct words *words)
{
    for (size_t index = 0; index < 1 + MAX_ARGUMENTS; index++)
        if (words->held[index])
            PyBuffer_Release (&words->view[index]);
}

/* The arguments as words; -1 with an exception, and nothing is held. */
static int take (PyObject *arguments, struct words *words)
{
    Py_ssize_t count = PyTuple_Size (arguments);
    if (count < 1 || count > 1 + MAX_ARGUMENTS) {
        PyErr_SetString (PyExc_TypeError, "a call takes a number and up to 6 arguments");
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++)
        if (word_of (PyTuple_GetItem (arguments, index), &words->word[index], &words->view[index], &words->held[index]) < 0) {
            release (words);
            return -1;
        }
    return 0;
}

static PyObject *raw_call (PyObject *self, PyObject *arguments)
{
    (void) self;
    struct words words = { 0 };
    if (take (arguments, &words) < 0)
        return NULL;
    const long *word = words.word;
    errno = 0;
    long answer = syscall (word[0], word[1], word[2], word[3], word[4], word[5], word[6]);
    PyObject *result = PyLong_FromLong (answer == -1 && errno != 0 ? -(long) errno : answer);
    release (&words);
    return result;
}

static PyObject *raw_load (PyObject *self, PyObject *arguments)
{
    (void) self;
    const char *name;
    if (!PyArg_ParseTuple (arguments, "s", &name))
        return NULL;
    void *library = dlopen (name, RTLD_NOW);
    if (library == NULL) {
        const char *reason = dlerror ();
        PyErr_SetString (PyExc_OSError, reason != NULL ? reason : name);
        return NULL;
    }
    return PyLong_FromVoidPtr (library);
}

static PyObject *raw_symbol (PyObject *self, PyObject *arguments)
{
    (void) self;
    PyObject *library;
    const char *name;
    if (!PyArg_ParseTuple (arguments, "Os", &library, &name))
        return NULL;
    void *handle = PyLong_AsVoidPtr (library);
    if (handle == NULL) {
        if (PyErr_Occurred () == NULL)
            PyErr_SetString (PyExc_ValueError, "no library");
        return NULL;
    }
    return PyLong_FromVoidPtr (dlsym (handle, name));
}

static PyObject *raw_invoke (PyObject *self, PyObject *arguments)
{
    (void) self;
    struct words words = { 0 };
    if (take (arguments, &words) < 0)
        return NULL;
    const long *word = words.word;
    if (word[0] == 0) {
        release (&words);
        PyErr_SetString (PyExc_ValueError, "no function");
        return NULL;
    }
    long (*function) (long, long, long, long, long, long) = (long (*) (long, long, long, long, long, long)) (intptr_t) word[0];
    PyThreadState *state = PyEval_SaveThread ();
    long answer = function (word[1], word[2], word[3], word[4], word[5], word[6]);
    PyEval_RestoreThread (state);
    release (&words);
    return PyLong_FromLong (answer);
}

static PyObject *raw_text (PyObject *self, PyObject *place)
{
    (void) self;
    const char *text = PyLong_AsVoidPtr (place);
    if (text == NULL)
        return PyErr_Occurred () != NULL ? NULL : PyBytes_FromString ("");
    return PyBytes_FromString (text);
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
    PyObject *given[3];
    char *parts[3];
    Py_ssize_t sizes[3];
    if (!PyArg_ParseTuple (arguments, "SSS", &given[0], &given[1], &given[2]))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (PyBytes_AsStringAndSize (given[i], &parts[i], &sizes[i]) < 0)
            return NULL;
    if (sizes[0] != sizeof (struct standby_orders) || sizes[2] % (Py_ssize_t) sizeof (struct standby_range) != 0) {
        PyErr_SetString (PyExc_ValueError, "orders or ranges of another size");
        return NULL;
    }
    return PyLong_FromLong (
        standby (parts[0], parts[1], (size_t) sizes[1], parts[2], (size_t) sizes[2] / sizeof (struct standby_range)));
}

static PyMethodDef methods[] = {
    { "call", raw_call, METH_VARARGS,
      "call(number, *arguments): the result, or minus errno. Integers, buffers (their address) and None (0)." },
    { "load", raw_load, METH_VARARGS, "load(name): a library's handle, for good (RTLD_NOW). Raises OSError with dlerror's text." },
    { "symbol", raw_symbol, METH_VARARGS, "symbol(library, name): the address, 0 where it has none." },
    { "invoke", raw_invoke, METH_VARARGS, "invoke(address, *arguments): the function's result as a word; arguments as for call." },
    { "text", raw_text, METH_O, "text(address): the bytes before the null there; none for 0." },
    { "address", raw_address, METH_O, "address(bytearray): where it lies; good while it lives and keeps its length." },
    { "standby", raw_standby, METH_VARARGS,
      "standby(orders, filter, ranges): wait to become a program, without memory; minus errno where that cannot be." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = { PyModuleDef_HEAD_INIT, "nvc.linux._raw", NULL, 0, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__raw (void);
PyMODINIT_FUNC PyInit__raw (void) { return PyModuleDef_Init (&definition); }
