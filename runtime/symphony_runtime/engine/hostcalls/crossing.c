/* How a guest's calls cross from its fiber to the worker, without Python on the fiber's stack.
 *
 *   guest calls an import -> on_call (on the fiber's stack): its number, its arguments and where its
 *   result goes are copied into the guest's record, the continuation is set, and the fiber yields
 *   -> Seat.poll returns CALLED to the worker, on its own stack -> Seat.resume puts the result into
 *   the record -> the next poll: may_go_on (on the fiber's stack) hands it to the engine.
 *
 * The engine's functions come as addresses from whoever loads this: nothing here is linked to it.
 * What a guest can do to these functions: choose the arguments' values, which are copied and never
 * followed here. `read` and `write` alone touch its memory, within `size`, which the engine says.
 * It never shrinks and never moves, and nobody else writes it while the guest is suspended.
 *
 * The interpreter is given up around each poll, and the two functions on the fiber's stack neither
 * take it nor touch an object: its state never sees a stack but the thread's own.
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

_Static_assert(sizeof(void *) == 8, "addresses are 64-bit members of a seat");

typedef struct { /* wasmtime_val_t; its size is compared with the bindings' when this is loaded */
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

typedef struct { /* what the epoch's ticker and whoever polls tell each other (`ticker.Board`) */
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
    bool (*export_of_caller)(void *caller, const char *name, size_t length, void *found);
} Engine;

struct Seat;

typedef struct {
    struct Desk *desk;
    int32_t index;
} Import;

typedef struct Desk { /* one engine's: what all its guests share */
    PyObject_HEAD
    Engine engine;
    Board *board;
    struct Seat *polled; /* who runs; the thread that polls sets it, and sees its own callbacks */
    Py_buffer board_view;
    PyObject *arm, *fault;
    Import *imports;
    Py_ssize_t imports_count;
} Desk;

typedef struct Seat { /* one guest's record */
    PyObject_HEAD
    Desk *desk;
    void *future, *context, *memory; /* `memory`: the engine's handle, in `buffer` */
    uint64_t epoch, base, size;
    Value *results;
    int64_t result;
    int32_t call;
    uint8_t results_count, arguments_count, wide, ready, pending;
    int64_t arguments[ARGUMENTS_MAX]; /* those that are i32: unsigned */
    PyObject *args;
    uint64_t buffer[BUFFER_WORDS]; /* what the engine's futures point into */
} Seat;

/* -- On the fiber's stack --------------------------------------------------------------------- */

static bool may_go_on(void *environment) {
    Seat *seat = environment;
    if (!seat->ready) return false;
    seat->ready = seat->pending = 0;
    if (seat->results_count) {
        seat->results[0].kind = seat->wide ? KIND_I64 : KIND_I32;
        seat->results[0].of.i64 = seat->result;
    }
    return true;
}

static void on_call(void *environment, void *caller, const Value *arguments, size_t count,
                    Value *results, size_t results_count, void **trap, Continuation *continuation) {
    (void)trap;
    Import *import = environment;
    Desk *desk = import->desk;
    Seat *seat = desk->polled;
    if (!seat || count > ARGUMENTS_MAX || results_count > 1) abort(); /* ours; nobody can go on */
    const Engine *engine = &desk->engine;
    if (!seat->base && engine->export_of_caller(caller, "memory", 6, (uint8_t *)seat->buffer + MEMORY_AT))
        seat->base = (uint64_t)engine->memory_data(seat->context, seat->memory);
    if (seat->base) seat->size = engine->memory_size(seat->context, seat->memory);
    for (size_t i = 0; i < count; i++) {
        const Value *each = &arguments[i];
        seat->arguments[i] = each->kind == KIND_I32 ? (int64_t)(uint32_t)each->of.i32 : each->of.i64;
    }
    seat->arguments_count = (uint8_t)count;
    seat->results = results;
    seat->results_count = (uint8_t)results_count;
    seat->ready = 0;
    seat->pending = 1;
    seat->call = import->index;
    continuation->callback = may_go_on;
    continuation->environment = seat;
    continuation->finalizer = NULL;
}

/* -- Desk ------------------------------------------------------------------------------------- */

static int desk_init(Desk *self, PyObject *args, PyObject *kwargs) {
    unsigned long long poll, delete_future, deadline, size, data, of_caller;
    Py_ssize_t count;
    PyObject *board, *arm, *fault;
    if (self->board_view.obj || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "a desk is made once, without keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "(KKKKKK)OnOO", &poll, &delete_future, &deadline, &size, &data,
                          &of_caller, &board, &count, &arm, &fault))
        return -1;
    if (!poll || !delete_future || !deadline || !size || !data || !of_caller || count < 0 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a function is missing");
        return -1;
    }
    if (PyObject_GetBuffer(board, &self->board_view, PyBUF_WRITABLE)) return -1;
    if (self->board_view.len != sizeof(Board)) {
        PyErr_SetString(PyExc_ValueError, "another board than this one's");
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

static void desk_dealloc(Desk *self) {
    if (self->board_view.obj) PyBuffer_Release(&self->board_view);
    PyMem_Free(self->imports);
    Py_XDECREF(self->arm);
    Py_XDECREF(self->fault);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *desk_import_at(Desk *self, PyObject *index) {
    Py_ssize_t at = PyLong_AsSsize_t(index);
    if (at < 0 || at >= self->imports_count) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "no such import");
        return NULL;
    }
    return PyLong_FromVoidPtr(&self->imports[at]);
}

static PyMethodDef desk_methods[] = {
    {"import_at", (PyCFunction)desk_import_at, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *desk_on_call(Desk *self, void *unused) {
    (void)self, (void)unused;
    return PyLong_FromVoidPtr((void *)on_call);
}

static PyGetSetDef desk_getset[] = {
    {"on_call", (getter)desk_on_call, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject DeskType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "crossing.Desk",
    .tp_basicsize = sizeof(Desk),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)desk_init,
    .tp_dealloc = (destructor)desk_dealloc,
    .tp_methods = desk_methods,
    .tp_getset = desk_getset,
};

/* -- Seat ------------------------------------------------------------------------------------- */

static int seat_init(Seat *self, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    PyObject *desk;
    if (!PyArg_ParseTuple(args, "O!", &DeskType, &desk)) return -1;
    if (self->desk || !((Desk *)desk)->board) {
        PyErr_SetString(PyExc_TypeError, "a seat is made once, at a desk that is made");
        return -1;
    }
    self->desk = (Desk *)Py_NewRef(desk);
    self->call = NO_CALL;
    self->epoch = UINT64_MAX;
    self->args = PyTuple_New(0);
    self->memory = (uint8_t *)self->buffer + MEMORY_AT + EXTERN_OF;
    return self->args ? 0 : -1;
}

static void seat_dealloc(Seat *self) {
    Py_XDECREF(self->desk);
    Py_XDECREF(self->args);
    Py_TYPE(self)->tp_free(self);
}

static int take_arguments(Seat *self) {
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
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static PyObject *seat_poll(Seat *self, PyObject *unused) {
    (void)unused;
    Desk *desk = self->desk;
    for (;;) {
        if (!desk || !self->future || !self->context || desk->polled) {
            PyErr_SetString(PyExc_RuntimeError, "nothing to poll, or it is polled");
            return NULL;
        }
        Board *board = desk->board;
        self->call = NO_CALL;
        if (self->epoch != board->epoch) { /* ticks that were for others */
            self->epoch = board->epoch;
            desk->engine.set_epoch_deadline(self->context, 1);
        }
        board->since = seconds();
        if (!board->armed) {
            PyObject *armed = PyObject_CallNoArgs(desk->arm);
            if (!armed) { board->since = 0; return NULL; }
            Py_DECREF(armed);
        }
        bool done;
        desk->polled = self;
        Py_BEGIN_ALLOW_THREADS
        done = desk->engine.poll(self->future);
        Py_END_ALLOW_THREADS
        desk->polled = NULL;
        board->since = 0;
        if (!done) break;
        self->pending = self->ready = 0;
        self->results = NULL;
        /* Gone before anything can raise: what has ended must never be polled again. */
        desk->engine.delete_future(self->future);
        self->future = NULL;
        PyObject *ended = PyObject_CallMethod((PyObject *)self, "over", NULL);
        if (!ended) return NULL;
        int truth = PyObject_IsTrue(ended);
        Py_DECREF(ended);
        if (truth < 0) return NULL;
        if (truth) return PyLong_FromLong(ENDED);
    }
    if (self->call >= 0) return take_arguments(self) ? NULL : PyLong_FromLong(CALLED);
    if (self->base) self->size = desk->engine.memory_size(self->context, self->memory);
    return PyLong_FromLong(PREEMPTED);
}

/* resume(result, wide=False), `wide` by its place or its name */
static PyObject *seat_resume(Seat *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
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

static PyObject *seat_resume_void(Seat *self, PyObject *unused) {
    (void)unused;
    if (!self->pending) {
        PyErr_SetString(PyExc_RuntimeError, "no call is pending");
        return NULL;
    }
    self->ready = 1;
    Py_RETURN_NONE;
}

static PyObject *seat_vacate(Seat *self, PyObject *unused) {
    (void)unused;
    if (self->desk && self->desk->polled == self) {
        PyErr_SetString(PyExc_RuntimeError, "it is polled");
        return NULL;
    }
    self->future = self->context = NULL;
    self->base = self->size = 0;
    self->results = NULL;
    self->pending = self->ready = 0;
    Py_RETURN_NONE;
}

/* Whether [pointer, pointer + length) lies in memory; an error is set where it does not. */
static bool within(Seat *self, uint64_t pointer, uint64_t length) {
    if (!self->desk) {
        PyErr_SetString(PyExc_RuntimeError, "a seat without a desk");
        return false;
    }
    uint64_t size = self->base ? self->size : 0;
    if (pointer <= size && length <= size - pointer) return true;
    PyObject *none = PyObject_CallNoArgs(self->desk->fault); /* raises */
    Py_XDECREF(none);
    if (none) PyErr_SetString(PyExc_SystemError, "the fault did not raise");
    return false;
}

/* A range's two numbers; what does not fit 64 bits, or is negative, lies outside any memory. */
static bool range_of(Seat *self, PyObject *const *args, uint64_t *pointer, uint64_t *length) {
    *pointer = PyLong_AsUnsignedLongLong(args[0]);
    if (*pointer == UINT64_MAX && PyErr_Occurred()) return false;
    *length = PyLong_AsUnsignedLongLong(args[1]);
    if (*length == UINT64_MAX && PyErr_Occurred()) return false;
    return within(self, *pointer, *length);
}

static PyObject *seat_check(Seat *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t pointer, length;
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "check(pointer, length)"); return NULL; }
    if (!range_of(self, args, &pointer, &length)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *seat_read(Seat *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t pointer, length;
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "read(pointer, length)"); return NULL; }
    if (!range_of(self, args, &pointer, &length)) return NULL;
    return PyBytes_FromStringAndSize((char *)self->base + pointer, (Py_ssize_t)length);
}

static PyObject *seat_write(Seat *self, PyObject *const *args, Py_ssize_t count) {
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

static PyObject *seat_buffer_at(Seat *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->buffer);
}

static PyMethodDef seat_methods[] = {
    {"poll", (PyCFunction)seat_poll, METH_NOARGS, NULL},
    {"resume", (PyCFunction)(void (*)(void))seat_resume, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"resume_void", (PyCFunction)seat_resume_void, METH_NOARGS, NULL},
    {"vacate", (PyCFunction)seat_vacate, METH_NOARGS, NULL},
    {"check", (PyCFunction)(void (*)(void))seat_check, METH_FASTCALL, NULL},
    {"read", (PyCFunction)(void (*)(void))seat_read, METH_FASTCALL, NULL},
    {"write", (PyCFunction)(void (*)(void))seat_write, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef seat_members[] = {
    {"call", T_INT, offsetof(Seat, call), READONLY, NULL},
    {"args", T_OBJECT, offsetof(Seat, args), READONLY, NULL},
    {"base", T_ULONGLONG, offsetof(Seat, base), 0, NULL},
    {"size", T_ULONGLONG, offsetof(Seat, size), 0, NULL},
    {"future", T_ULONGLONG, offsetof(Seat, future), 0, NULL},
    {"context", T_ULONGLONG, offsetof(Seat, context), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef seat_getset[] = {
    {"buffer_at", (getter)seat_buffer_at, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject SeatType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "crossing.Seat",
    .tp_basicsize = sizeof(Seat),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)seat_init,
    .tp_dealloc = (destructor)seat_dealloc,
    .tp_methods = seat_methods,
    .tp_members = seat_members,
    .tp_getset = seat_getset,
};

/* -- Module ----------------------------------------------------------------------------------- */

static int module_exec(PyObject *made) {
    if (PyType_Ready(&DeskType) || PyType_Ready(&SeatType)) return -1;
    if (PyModule_AddObjectRef(made, "Desk", (PyObject *)&DeskType)) return -1;
    if (PyModule_AddObjectRef(made, "Seat", (PyObject *)&SeatType)) return -1;
    PyObject *layout = Py_BuildValue(
        "(nnnnnnnnn)", sizeof(Value), offsetof(Value, of), sizeof(uint64_t[BUFFER_WORDS]),
        (Py_ssize_t)MEMORY_AT, (Py_ssize_t)EXTERN_OF, offsetof(Board, since),
        offsetof(Board, epoch), offsetof(Board, armed), sizeof(Board));
    int failed = !layout || PyModule_AddObjectRef(made, "layout", layout);
    Py_XDECREF(layout);
    return failed ? -1 : PyModule_AddIntConstant(made, "arguments_max", ARGUMENTS_MAX);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "crossing", .m_size = 0, .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_crossing(void) { return PyModuleDef_Init(&module); }
