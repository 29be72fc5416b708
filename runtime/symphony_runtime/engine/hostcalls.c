/* Host calls: how a guest's calls get from its fiber to the worker, with no Python on its stack.
 *
 *   guest calls an import -> on_call (on the fiber's stack) copies the import's number, the arguments
 *   and the place of the result into the guest's record, sets the continuation, and the fiber yields
 *   -> Guest.poll returns CALLED to the worker, on its own stack -> Guest.resume puts the result into
 *   the record -> the next poll: may_continue (on the fiber's stack) hands it to the engine.
 *
 * The engine's functions come as addresses from `fiber.py`: nothing here is linked to wasmtime.
 * A guest chooses only the arguments' values, which are copied and never followed here. `read` and
 * `write` alone touch its memory, within `size`, which comes from the engine. The memory never
 * shrinks and never moves, and nothing else writes it while the guest is suspended.
 *
 * The GIL is released around each poll. The two functions on the fiber's stack neither take it nor
 * touch an object, so the interpreter never runs on a guest's stack.
 *
 * setuptools builds this file as `symphony_runtime.engine._hostcalls` (pyproject.toml).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { PREEMPTED, CALLED, ENDED };
enum { NO_CALL = -1 };
enum { ARGUMENTS_MAX = 16, BUFFER_WORDS = 16, MEMORY_AT = 64, EXTERN_OF = 8 };
enum { KIND_I32 = 0, KIND_I64 = 1 };

_Static_assert(sizeof(void *) == 8, "addresses are 64-bit members of a guest");

typedef struct { /* wasmtime_val_t; `layout` lets fiber.py compare it with the bindings */
    uint8_t kind;
    union {
        int32_t i32;
        int64_t i64;
        uint64_t words[3];
    } of;
} Value;

typedef struct { /* wasmtime_async_continuation_t */
    bool (*callback)(void *);
    void *environment;
    void (*finalizer)(void *);
} Continuation;

typedef struct { /* shared with the epoch ticker: `epoch_ticker.Board` */
    double since;
    uint64_t epoch;
    uint8_t armed;
} Board;

typedef struct {
    bool (*poll)(void *future);
    void (*delete_future)(void *future);
    void (*set_epoch_deadline)(void *context, uint64_t ticks);
    size_t (*memory_size)(void *context, void *memory);
    uint8_t *(*memory_data)(void *context, void *memory);
    bool (*caller_export)(void *caller, const char *name, size_t length, void *found);
} Engine;

struct Guest;

typedef struct {
    struct HostCalls *hostcalls;
    int32_t index;
} Import;

typedef struct HostCalls { /* what all guests of one engine share */
    PyObject_HEAD
    Engine engine;
    Board *board;
    struct Guest *polled; /* the guest that runs; only the polling thread reads or sets it */
    Py_buffer board_view;
    PyObject *arm, *fault;
    Import *imports;
    Py_ssize_t imports_count;
} HostCalls;

typedef struct Guest { /* one guest's record: the base class of `Fiber` */
    PyObject_HEAD
    HostCalls *hostcalls;
    void *future, *context, *memory; /* `memory`: the engine's handle, in `buffer` */
    uint64_t epoch, base, size;
    Value *results;
    int64_t result;
    int32_t call;
    uint8_t results_count, arguments_count, wide, ready, pending;
    int64_t arguments[ARGUMENTS_MAX]; /* i32 zero-extended */
    PyObject *args;
    uint64_t buffer[BUFFER_WORDS]; /* what the engine's futures point into */
} Guest;

/* -- On the fiber's stack --------------------------------------------------------------------- */

static bool may_continue(void *environment) {
    Guest *guest = environment;
    if (!guest->ready) return false;
    guest->ready = guest->pending = 0;
    if (guest->results_count) {
        guest->results[0].kind = guest->wide ? KIND_I64 : KIND_I32;
        guest->results[0].of.i64 = guest->result;
    }
    return true;
}

static void on_call(void *environment, void *caller, const Value *arguments, size_t count,
                    Value *results, size_t results_count, void **trap, Continuation *continuation) {
    (void)trap;
    Import *import = environment;
    HostCalls *hostcalls = import->hostcalls;
    Guest *guest = hostcalls->polled;
    if (!guest || count > ARGUMENTS_MAX || results_count > 1) abort(); /* a bug of ours: no way to report it here */
    const Engine *engine = &hostcalls->engine;
    if (!guest->base && engine->caller_export(caller, "memory", 6, (uint8_t *)guest->buffer + MEMORY_AT))
        guest->base = (uint64_t)engine->memory_data(guest->context, guest->memory);
    if (guest->base) guest->size = engine->memory_size(guest->context, guest->memory);
    for (size_t i = 0; i < count; i++) {
        const Value *each = &arguments[i];
        guest->arguments[i] = each->kind == KIND_I32 ? (int64_t)(uint32_t)each->of.i32 : each->of.i64;
    }
    guest->arguments_count = (uint8_t)count;
    guest->results = results;
    guest->results_count = (uint8_t)results_count;
    guest->ready = 0;
    guest->pending = 1;
    guest->call = import->index;
    continuation->callback = may_continue;
    continuation->environment = guest;
    continuation->finalizer = NULL;
}

/* -- HostCalls -------------------------------------------------------------------------------- */

static int hostcalls_init(HostCalls *self, PyObject *args, PyObject *kwargs) {
    unsigned long long poll, delete_future, deadline, size, data, of_caller;
    Py_ssize_t count;
    PyObject *board, *arm, *fault;
    if (self->board_view.obj || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "HostCalls is initialized once, without keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "(KKKKKK)OnOO", &poll, &delete_future, &deadline, &size, &data,
                          &of_caller, &board, &count, &arm, &fault))
        return -1;
    if (!poll || !delete_future || !deadline || !size || !data || !of_caller || count < 0 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the address of an engine function is 0, or the number of imports is invalid");
        return -1;
    }
    if (PyObject_GetBuffer(board, &self->board_view, PyBUF_WRITABLE)) return -1;
    if (self->board_view.len != sizeof(Board)) {
        PyErr_SetString(PyExc_ValueError, "the board has another size than this build expects");
        return -1;
    }
    self->imports = PyMem_Calloc((size_t)count + 1, sizeof(Import));
    if (!self->imports) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) self->imports[i] = (Import){self, (int32_t)i};
    self->imports_count = count;
    self->board = self->board_view.buf;
    self->engine = (Engine){(void *)poll, (void *)delete_future, (void *)deadline,
                            (void *)size, (void *)data, (void *)of_caller};
    self->arm = Py_NewRef(arm);
    self->fault = Py_NewRef(fault);
    return 0;
}

static void hostcalls_dealloc(HostCalls *self) {
    if (self->board_view.obj) PyBuffer_Release(&self->board_view);
    PyMem_Free(self->imports);
    Py_XDECREF(self->arm);
    Py_XDECREF(self->fault);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *hostcalls_import_address(HostCalls *self, PyObject *index) {
    Py_ssize_t at = PyLong_AsSsize_t(index);
    if (at < 0 || at >= self->imports_count) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "import index out of range");
        return NULL;
    }
    return PyLong_FromVoidPtr(&self->imports[at]);
}

static PyMethodDef hostcalls_methods[] = {
    {"import_address", (PyCFunction)hostcalls_import_address, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *hostcalls_callback_address(HostCalls *self, void *unused) {
    (void)self, (void)unused;
    return PyLong_FromVoidPtr((void *)on_call);
}

static PyGetSetDef hostcalls_getset[] = {
    {"callback_address", (getter)hostcalls_callback_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject HostCallsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "symphony_runtime.engine._hostcalls.HostCalls",
    .tp_basicsize = sizeof(HostCalls),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)hostcalls_init,
    .tp_dealloc = (destructor)hostcalls_dealloc,
    .tp_methods = hostcalls_methods,
    .tp_getset = hostcalls_getset,
};

/* -- Guest ------------------------------------------------------------------------------------ */

static int guest_init(Guest *self, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    PyObject *hostcalls;
    if (!PyArg_ParseTuple(args, "O!", &HostCallsType, &hostcalls)) return -1;
    if (self->hostcalls || !((HostCalls *)hostcalls)->board) {
        PyErr_SetString(PyExc_TypeError, "Guest is initialized once, with an initialized HostCalls");
        return -1;
    }
    self->hostcalls = (HostCalls *)Py_NewRef(hostcalls);
    self->call = NO_CALL;
    self->epoch = UINT64_MAX;
    self->args = PyTuple_New(0);
    self->memory = (uint8_t *)self->buffer + MEMORY_AT + EXTERN_OF;
    return self->args ? 0 : -1;
}

static void guest_dealloc(Guest *self) {
    Py_XDECREF(self->hostcalls);
    Py_XDECREF(self->args);
    Py_TYPE(self)->tp_free(self);
}

static int set_args(Guest *self) {
    PyObject *args = PyTuple_New(self->arguments_count);
    if (!args) return -1;
    for (uint8_t i = 0; i < self->arguments_count; i++) {
        PyObject *each = PyLong_FromLongLong(self->arguments[i]);
        if (!each) { Py_DECREF(args); return -1; }
        PyTuple_SET_ITEM(args, i, each);
    }
    Py_SETREF(self->args, args);
    return 0;
}

static double seconds(void) {
    struct timespec now;
#ifdef __APPLE__ /* the clock of Python's time.perf_counter, which the ticker reads */
    clock_gettime(CLOCK_UPTIME_RAW, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static PyObject *guest_poll(Guest *self, PyObject *unused) {
    (void)unused;
    HostCalls *hostcalls = self->hostcalls;
    for (;;) {
        if (!hostcalls || !self->future || !self->context || hostcalls->polled) {
            PyErr_SetString(PyExc_RuntimeError, "nothing to poll, or a poll is running");
            return NULL;
        }
        Board *board = hostcalls->board;
        self->call = NO_CALL;
        if (self->epoch != board->epoch) { /* ticks that were for other guests: it would yield at once */
            self->epoch = board->epoch;
            hostcalls->engine.set_epoch_deadline(self->context, 1);
        }
        board->since = seconds();
        if (!board->armed) {
            PyObject *armed = PyObject_CallNoArgs(hostcalls->arm);
            if (!armed) { board->since = 0; return NULL; }
            Py_DECREF(armed);
        }
        bool done;
        hostcalls->polled = self;
        Py_BEGIN_ALLOW_THREADS
        done = hostcalls->engine.poll(self->future);
        Py_END_ALLOW_THREADS
        hostcalls->polled = NULL;
        board->since = 0;
        if (!done) break;
        self->pending = self->ready = 0;
        self->results = NULL;
        /* Delete it before anything can raise: an ended future must never be polled again. */
        hostcalls->engine.delete_future(self->future);
        self->future = NULL;
        PyObject *ended = PyObject_CallMethod((PyObject *)self, "on_future_end", NULL);
        if (!ended) return NULL;
        int truth = PyObject_IsTrue(ended);
        Py_DECREF(ended);
        if (truth < 0) return NULL;
        if (truth) return PyLong_FromLong(ENDED);
    }
    if (self->call >= 0) return set_args(self) ? NULL : PyLong_FromLong(CALLED);
    if (self->base) self->size = hostcalls->engine.memory_size(self->context, self->memory);
    return PyLong_FromLong(PREEMPTED);
}

/* resume(result, wide=False); `wide` is positional or a keyword */
static PyObject *guest_resume(Guest *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    bool known = !named || (named == 1 && count == 1 &&
                 !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "wide"));
    if (count < 1 || count + named > 2 || !known) {
        PyErr_SetString(PyExc_TypeError, "resume(result, wide=False)");
        return NULL;
    }
    int64_t result = PyLong_AsLongLong(args[0]);
    if (result == -1 && PyErr_Occurred()) return NULL;
    int wide = count + named == 2 ? PyObject_IsTrue(args[1]) : 0;
    if (wide < 0) return NULL;
    if (!self->pending) {
        PyErr_SetString(PyExc_RuntimeError, "no call is pending");
        return NULL;
    }
    self->result = result;
    self->wide = (uint8_t)wide;
    self->ready = 1;
    Py_RETURN_NONE;
}

static PyObject *guest_resume_void(Guest *self, PyObject *unused) {
    (void)unused;
    if (!self->pending) {
        PyErr_SetString(PyExc_RuntimeError, "no call is pending");
        return NULL;
    }
    self->ready = 1;
    Py_RETURN_NONE;
}

static PyObject *guest_detach(Guest *self, PyObject *unused) {
    (void)unused;
    if (self->hostcalls && self->hostcalls->polled == self) {
        PyErr_SetString(PyExc_RuntimeError, "the guest is being polled");
        return NULL;
    }
    self->future = self->context = NULL;
    self->base = self->size = 0;
    self->results = NULL;
    self->pending = self->ready = 0;
    Py_RETURN_NONE;
}

/* Return whether [pointer, pointer + length) lies in memory, else set EFAULT. */
static bool within(Guest *self, uint64_t pointer, uint64_t length) {
    if (!self->hostcalls) {
        PyErr_SetString(PyExc_RuntimeError, "the guest is not initialized");
        return false;
    }
    uint64_t size = self->base ? self->size : 0;
    if (pointer <= size && length <= size - pointer) return true;
    PyObject *none = PyObject_CallNoArgs(self->hostcalls->fault); /* raises */
    Py_XDECREF(none);
    if (none) PyErr_SetString(PyExc_SystemError, "the fault function did not raise");
    return false;
}

/* Parse and check a range. Numbers that are negative or over 64 bits raise OverflowError. */
static bool range_of(Guest *self, PyObject *const *args, uint64_t *pointer, uint64_t *length) {
    *pointer = PyLong_AsUnsignedLongLong(args[0]);
    if (*pointer == UINT64_MAX && PyErr_Occurred()) return false;
    *length = PyLong_AsUnsignedLongLong(args[1]);
    if (*length == UINT64_MAX && PyErr_Occurred()) return false;
    return within(self, *pointer, *length);
}

static PyObject *guest_check(Guest *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t pointer, length;
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "check(pointer, length)"); return NULL; }
    if (!range_of(self, args, &pointer, &length)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *guest_read(Guest *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t pointer, length;
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "read(pointer, length)"); return NULL; }
    if (!range_of(self, args, &pointer, &length)) return NULL;
    return PyBytes_FromStringAndSize((char *)self->base + pointer, (Py_ssize_t)length);
}

static PyObject *guest_write(Guest *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "write(pointer, data)"); return NULL; }
    uint64_t pointer = PyLong_AsUnsignedLongLong(args[0]);
    if (pointer == UINT64_MAX && PyErr_Occurred()) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE)) return NULL;
    bool fits = within(self, pointer, (uint64_t)data.len);
    if (fits && data.len) memcpy((char *)self->base + pointer, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyObject *guest_buffer_address(Guest *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->buffer);
}

static PyMethodDef guest_methods[] = {
    {"poll", (PyCFunction)guest_poll, METH_NOARGS, NULL},
    {"resume", (PyCFunction)(void (*)(void))guest_resume, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"resume_void", (PyCFunction)guest_resume_void, METH_NOARGS, NULL},
    {"detach", (PyCFunction)guest_detach, METH_NOARGS, NULL},
    {"check", (PyCFunction)(void (*)(void))guest_check, METH_FASTCALL, NULL},
    {"read", (PyCFunction)(void (*)(void))guest_read, METH_FASTCALL, NULL},
    {"write", (PyCFunction)(void (*)(void))guest_write, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef guest_members[] = {
    {"call", T_INT, offsetof(Guest, call), READONLY, NULL},
    {"args", T_OBJECT, offsetof(Guest, args), READONLY, NULL},
    {"base", T_ULONGLONG, offsetof(Guest, base), 0, NULL},
    {"size", T_ULONGLONG, offsetof(Guest, size), 0, NULL},
    {"future", T_ULONGLONG, offsetof(Guest, future), 0, NULL},
    {"context", T_ULONGLONG, offsetof(Guest, context), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef guest_getset[] = {
    {"buffer_address", (getter)guest_buffer_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject GuestType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "symphony_runtime.engine._hostcalls.Guest",
    .tp_basicsize = sizeof(Guest),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)guest_init,
    .tp_dealloc = (destructor)guest_dealloc,
    .tp_methods = guest_methods,
    .tp_members = guest_members,
    .tp_getset = guest_getset,
};

/* -- Module ----------------------------------------------------------------------------------- */

static int module_exec(PyObject *made) {
    if (PyType_Ready(&HostCallsType) || PyType_Ready(&GuestType)) return -1;
    if (PyModule_AddObjectRef(made, "HostCalls", (PyObject *)&HostCallsType)) return -1;
    if (PyModule_AddObjectRef(made, "Guest", (PyObject *)&GuestType)) return -1;
    PyObject *layout = Py_BuildValue(
        "(nnnnnnnnn)", sizeof(Value), offsetof(Value, of), sizeof(uint64_t[BUFFER_WORDS]),
        (Py_ssize_t)MEMORY_AT, (Py_ssize_t)EXTERN_OF, offsetof(Board, since),
        offsetof(Board, epoch), offsetof(Board, armed), sizeof(Board));
    int failed = !layout || PyModule_AddObjectRef(made, "layout", layout);
    Py_XDECREF(layout);
    if (failed || PyModule_AddIntMacro(made, ARGUMENTS_MAX)) return -1;
    return PyModule_AddIntMacro(made, PREEMPTED) || PyModule_AddIntMacro(made, CALLED) ||
           PyModule_AddIntMacro(made, ENDED) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_hostcalls", .m_size = 0, .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__hostcalls(void) { return PyModuleDef_Init(&module); }
