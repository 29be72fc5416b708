/* The language module of JavaScript: QuickJS with the calls of `lip` bound in it.

   check       compiles the source, and tells the first mistake with its line and column
   lip_main    runs the source: its default export, then promises until that has settled

   A ticket is a promise. When no job is left, the program waits for its tickets, and a ready one
   resolves its promise. The runtime is set up by the constructor below, whose memory the build
   writes into the module (tools/language_modules.py): a start costs no set-up. */
#include <stddef.h>
#include <stdint.h>

static const uint8_t *parse_error_at; /* set by the parser: where its last error is */
size_t malloc_usable_size(void *);

#include <fenv.h>
#include "rounding.h"
#include "quickjs.c"
#undef snprintf

#include "imports.h"
#include "msgpack.h"
#include "calls.h"

#define FILE_NAME "program.js"
#define STACK_BYTES (48 << 10) /* of scripts, below the stack of the module and of the server */
#define EXPORT(name) __attribute__((export_name(#name)))

static JSRuntime *runtime;
static JSContext *context;
static JSValue run_function; /* of the SDK: takes the program's exports, gives a promise */
static char *source;
static size_t source_length;

/* --- Tickets ------------------------------------------------------------------------------------ */
typedef struct {
    int32_t ticket;
    const char *call;
    JSValue settle[2]; /* resolve, reject */
} Pending;

static Pending *pending;
static int32_t *tickets;
static int pending_count, pending_room;
static uint8_t *result;
static size_t result_room;

static const char *name_of_call(const char *name)
{
    for (size_t i = 0; i < countof(calls); i++)
        if (!strcmp(calls[i].name, name))
            return calls[i].name;
    return "take";
}

/* (ticket, call) -> a promise of the result's bytes. A stream's ticket is awaited again and again. */
static JSValue js_result(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int32_t ticket;
    if (JS_ToInt32(ctx, &ticket, argv[0]))
        return JS_EXCEPTION;
    const char *name = JS_ToCString(ctx, argv[1]);
    if (!name)
        return JS_EXCEPTION;
    const char *call = name_of_call(name);
    JS_FreeCString(ctx, name);
    if (pending_count == pending_room) {
        int room = pending_room ? 2 * pending_room : 16;
        Pending *more = js_realloc(ctx, pending, room * sizeof *pending);
        if (more)
            pending = more;
        int32_t *numbers = more ? js_realloc(ctx, tickets, room * sizeof *tickets) : NULL;
        if (!numbers)
            return JS_EXCEPTION;
        tickets = numbers;
        pending_room = room;
    }
    Pending *made = &pending[pending_count];
    JSValue promise = JS_NewPromiseCapability(ctx, made->settle);
    if (!JS_IsException(promise)) {
        made->ticket = ticket;
        made->call = call;
        pending_count++;
    }
    return promise;
}

/* Give up waiting for a ticket, which the caller cancels; its promise never settles. */
static JSValue js_forget(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int32_t ticket;
    if (JS_ToInt32(ctx, &ticket, argv[0]))
        return JS_EXCEPTION;
    for (int i = 0; i < pending_count; i++) {
        if (pending[i].ticket == ticket) {
            JSValue a = pending[i].settle[0], b = pending[i].settle[1];
            memmove(&pending[i], &pending[i + 1], (--pending_count - i) * sizeof *pending);
            JS_FreeValue(ctx, a);
            JS_FreeValue(ctx, b);
            break;
        }
    }
    return JS_UNDEFINED;
}

static int grow_result(JSContext *ctx, size_t size)
{
    if (size <= result_room)
        return 0;
    uint8_t *more = js_realloc(ctx, result, size);
    if (!more)
        return -1;
    result = more;
    result_room = size;
    return 0;
}

/* Wait for a ticket and settle its promise; -1: an exception. */
static int settle_one(JSContext *ctx)
{
    int index = 0;
    int32_t length = -11; /* EAGAIN */
    if (grow_result(ctx, 4096))
        return -1;
    if (pending_count == 1) {
        length = lip_claim(pending[0].ticket, (word)result, result_room, -1);
    } else {
        for (int i = 0; i < pending_count; i++)
            tickets[i] = pending[i].ticket;
        index = lip_wait((word)tickets, pending_count, -1);
        if (index < 0) { /* a ticket that is none: each says so by itself */
            length = -11;
            for (index = 0; index < pending_count && length == -11; index++)
                length = lip_take(pending[index].ticket, (word)result, result_room);
            if (length == -11)
                return JS_ThrowInternalError(ctx, "wait failed"), -1;
            index--;
        } else {
            length = lip_take(pending[index].ticket, (word)result, result_room);
        }
    }
    if (length > 0 && (size_t)length > result_room) {
        if (grow_result(ctx, length))
            return -1;
        length = lip_take(pending[index].ticket, (word)result, result_room);
    }
    if (length == -11)
        return 0;
    Pending ready = pending[index];
    memmove(&pending[index], &pending[index + 1], (--pending_count - index) * sizeof *pending);
    JSValue value = length >= 0 ? JS_NewArrayBufferCopy(ctx, result, length)
                                : make_error(ctx, ready.call, -length, has_words(ready.call));
    JSValue done = JS_IsException(value)
        ? JS_EXCEPTION
        : JS_Call(ctx, ready.settle[length < 0], JS_UNDEFINED, 1, (JSValueConst *)&value);
    int failed = JS_IsException(done);
    JS_FreeValue(ctx, done);
    JS_FreeValue(ctx, value);
    JS_FreeValue(ctx, ready.settle[0]);
    JS_FreeValue(ctx, ready.settle[1]);
    return failed ? -1 : 0;
}

/* --- Functions of the SDK that are no calls ------------------------------------------------------ */
static JSValue js_sleep(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int64_t ms;
    if (JS_ToInt64(ctx, &ms, argv[0]))
        return JS_EXCEPTION;
    return JS_NewInt32(ctx, lip_sleep(ms));
}

static JSValue js_clock(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv, int wall)
{
    return JS_NewInt64(ctx, wall ? lip_unix_ms() : lip_clock_ms());
}

static JSValue js_exit(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int32_t code;
    if (JS_ToInt32(ctx, &code, argv[0]))
        return JS_EXCEPTION;
    lip_exit(code);
    return JS_UNDEFINED;
}

static JSValue js_advise(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int32_t handle, hint;
    int64_t argument;
    if (JS_ToInt32(ctx, &handle, argv[0]) || JS_ToInt32(ctx, &hint, argv[1])
        || JS_ToInt64(ctx, &argument, argv[2]))
        return JS_EXCEPTION;
    int32_t code = lip_kv_advise(handle, hint, argument);
    if (code >= 0)
        return JS_UNDEFINED;
    JSValue error = make_error(ctx, "kv_advise", -code, 0);
    return JS_IsException(error) ? error : JS_Throw(ctx, error);
}

static JSValue js_random(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    uint32_t count;
    if (JS_ToUint32(ctx, &count, argv[0]))
        return JS_EXCEPTION;
    if (count > 65536)
        return JS_ThrowRangeError(ctx, "random gives at most 65536 bytes");
    uint8_t *bytes = js_malloc(ctx, count + 1);
    if (!bytes)
        return JS_EXCEPTION;
    lip_random((word)bytes, count);
    return view_of(ctx, JS_NewArrayBuffer(ctx, bytes, count, free_bytes, NULL, FALSE),
                   JS_CLASS_UINT8_ARRAY);
}

static JSValue js_utf8_encode(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    size_t length;
    const char *text = text_of(ctx, argv[0], &length);
    if (!text)
        return JS_EXCEPTION;
    JSValue buffer = JS_NewArrayBufferCopy(ctx, (const uint8_t *)text, length);
    JS_FreeCString(ctx, text);
    return view_of(ctx, buffer, JS_CLASS_UINT8_ARRAY);
}

static JSValue js_utf8_decode(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    uint8_t *bytes;
    size_t length;
    if (!bytes_of(ctx, argv[0], &bytes, &length))
        return JS_ThrowTypeError(ctx, "a Uint8Array or an ArrayBuffer is needed");
    return JS_NewStringLen(ctx, (const char *)bytes, length);
}

static JSValue js_unpack(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    uint8_t *bytes;
    size_t length;
    if (!bytes_of(ctx, argv[0], &bytes, &length))
        return JS_ThrowTypeError(ctx, "a Uint8Array or an ArrayBuffer is needed");
    Packed in = {bytes, bytes + length};
    return unpack(ctx, &in, 0);
}

/* A KV file's or a constraint's handle: freed with the last reference, as in the other SDKs. */
static JSClassID handle_class;

static void handle_finalizer(JSRuntime *rt, JSValue value)
{
    word packed = (word)JS_GetOpaque(value, handle_class);
    if (packed > 1)
        (packed & 1 ? lip_constraint_close : lip_kv_close)(packed >> 1);
}

static JSClassDef handle_def = {"Handle", .finalizer = handle_finalizer};

/* (number, is a constraint) -> an object that owns the handle. */
static JSValue js_own(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    int32_t number, constraint;
    if (JS_ToInt32(ctx, &number, argv[0]) || JS_ToInt32(ctx, &constraint, argv[1]))
        return JS_EXCEPTION;
    JSValue handle = JS_NewObjectClass(ctx, handle_class);
    if (!JS_IsException(handle))
        JS_SetOpaque(handle, (void *)((word)number << 1 | (constraint & 1)));
    return handle;
}

/* (handle) -> nothing: it is someone else's from now on, or closed by the caller. */
static JSValue js_disown(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv)
{
    if (!JS_GetOpaque2(ctx, argv[0], handle_class))
        return JS_EXCEPTION;
    JS_SetOpaque(argv[0], (void *)1);
    return JS_UNDEFINED;
}

/* --- Ends --------------------------------------------------------------------------------------- */
static void fail_with(const char *words)
{
    language_fail((word)words, strlen(words));
    abort();
}

static void append(char *text, size_t room, JSContext *ctx, JSValueConst value)
{
    const char *said = JS_ToCString(ctx, value);
    if (said)
        snprintf(text + strlen(text), room - strlen(text), "%s", said);
    else
        JS_FreeValue(ctx, JS_GetException(ctx));
    JS_FreeCString(ctx, said);
}

/* Append the lines of a stack that are the program's own. */
static void append_stack(char *text, size_t room, JSContext *ctx, JSValueConst stack)
{
    const char *said = JS_IsString(stack) ? JS_ToCString(ctx, stack) : NULL;
    for (const char *at = said; at && *at;) {
        int length = strcspn(at, "\n");
        char line[300];
        snprintf(line, sizeof line, "%.*s", length, at);
        if (!strstr(line, "(symphony") && !strstr(line, "(native)"))
            snprintf(text + strlen(text), room - strlen(text), "\n%s", line);
        at += length + (at[length] == '\n');
    }
    JS_FreeCString(ctx, said);
}

/* End the program with an error, its message and its stack. */
static void fail(JSContext *ctx, JSValue error)
{
    static char words[1800];
    words[0] = 0;
    if (JS_IsNull(error)) /* also of a promise: no memory was left for an error */
        strcpy(words, "null was thrown, or the memory is full");
    else
        append(words, sizeof words, ctx, error);
    if (JS_IsError(ctx, error)) {
        JSValue stack = JS_GetPropertyStr(ctx, error, "stack");
        append_stack(words, sizeof words, ctx, stack);
        JS_FreeValue(ctx, stack);
    }
    if (!words[0])
        strcpy(words, "an error that cannot be shown");
    lip_log(3, (word)words, strlen(words));
    fail_with(words);
}

static void fail_by_exception(JSContext *ctx)
{
    fail(ctx, JS_GetException(ctx));
}

static JSValue unhandled; /* the promise of the first rejection that nothing handles */
static JSValue unhandled_error;

static void track_rejection(JSContext *ctx, JSValueConst promise, JSValueConst reason,
                            JS_BOOL is_handled, void *opaque)
{
    int same = JS_IsObject(unhandled)
        && JS_VALUE_GET_PTR(unhandled) == JS_VALUE_GET_PTR(promise);
    if (is_handled ? same : JS_IsUndefined(unhandled)) {
        JS_FreeValue(ctx, unhandled);
        JS_FreeValue(ctx, unhandled_error);
        unhandled = is_handled ? JS_UNDEFINED : JS_DupValue(ctx, promise);
        unhandled_error = is_handled ? JS_UNDEFINED : JS_DupValue(ctx, reason);
    }
}

/* --- Set-up ------------------------------------------------------------------------------------- */
extern const char sdk_source[];
extern const unsigned sdk_length;

static JSModuleDef *load_module(JSContext *ctx, const char *name, void *opaque)
{
    JS_ThrowReferenceError(ctx, "there is no module '%s': a program imports \"symphony\"", name);
    return NULL;
}

static void define(JSContext *ctx, JSValueConst object, const char *name, JSCFunction *f, int length)
{
    JS_DefinePropertyValueStr(ctx, object, name, JS_NewCFunction(ctx, f, name, length),
                              JS_PROP_C_W_E);
}

static void add_calls(JSContext *ctx, JSValueConst raw)
{
    for (size_t i = 0; i < countof(calls); i++) {
        JSValue f = JS_NewCFunctionMagic(ctx, js_call, calls[i].name, strlen(calls[i].takes),
                                         JS_CFUNC_generic_magic, i);
        JS_DefinePropertyValueStr(ctx, raw, calls[i].name, f, JS_PROP_C_W_E);
    }
    define(ctx, raw, "result", js_result, 2);
    define(ctx, raw, "forget", js_forget, 1);
    define(ctx, raw, "sleep", js_sleep, 1);
    define(ctx, raw, "exit", js_exit, 1);
    define(ctx, raw, "kv_advise", js_advise, 3);
    define(ctx, raw, "random", js_random, 1);
    define(ctx, raw, "unpack", js_unpack, 1);
    define(ctx, raw, "own", js_own, 2);
    define(ctx, raw, "disown", js_disown, 1);
    define(ctx, raw, "utf8_encode", js_utf8_encode, 1);
    define(ctx, raw, "utf8_decode", js_utf8_decode, 1);
    for (int wall = 0; wall < 2; wall++) {
        const char *name = wall ? "unix_ms" : "clock_ms";
        JSValue f = JS_NewCFunctionMagic(ctx, (JSCFunctionMagic *)js_clock, name, 0,
                                         JS_CFUNC_generic_magic, wall);
        JS_DefinePropertyValueStr(ctx, raw, name, f, JS_PROP_C_W_E);
    }
}

__attribute__((constructor)) static void set_up(void)
{
    unhandled = unhandled_error = JS_UNDEFINED;
    runtime = JS_NewRuntime();
    JS_SetMaxStackSize(runtime, STACK_BYTES);
    JS_SetHostPromiseRejectionTracker(runtime, track_rejection, NULL);
    JS_SetModuleLoaderFunc(runtime, NULL, load_module, NULL);
    JSContext *ctx = context = JS_NewContextRaw(runtime);
    JS_AddIntrinsicBaseObjects(ctx);
    JS_AddIntrinsicDate(ctx);
    JS_AddIntrinsicEval(ctx);
    JS_AddIntrinsicStringNormalize(ctx);
    JS_AddIntrinsicRegExp(ctx);
    JS_AddIntrinsicJSON(ctx);
    JS_AddIntrinsicProxy(ctx);
    JS_AddIntrinsicMapSet(ctx);
    JS_AddIntrinsicTypedArrays(ctx);
    JS_AddIntrinsicPromise(ctx);
    JS_AddIntrinsicBigInt(ctx);
    JS_NewClassID(&handle_class);
    JS_NewClass(runtime, handle_class, &handle_def);
    JSValue global = JS_GetGlobalObject(ctx), raw = JS_NewObject(ctx);
    add_calls(ctx, raw);
    JS_SetPropertyStr(ctx, global, "raw", raw);
    JSValue done = JS_Eval(ctx, sdk_source, sdk_length, "symphony", JS_EVAL_TYPE_MODULE);
    if (JS_IsException(done))
        fail_by_exception(ctx);
    JS_FreeValue(ctx, done);
    run_function = JS_GetPropertyStr(ctx, global, "raw"); /* the SDK has put it there */
    JSAtom name = JS_NewAtom(ctx, "raw");
    JS_DeleteProperty(ctx, global, name, 0);
    JS_FreeAtom(ctx, name);
    JS_FreeValue(ctx, global);
    JS_RunGC(runtime);
}

/* --- Entries ------------------------------------------------------------------------------------ */
static void read_source(JSContext *ctx)
{
    int32_t length = language_source_read(0, 0);
    source = js_malloc(ctx, length + 1);
    if (!source)
        fail_with("out of memory");
    source_length = language_source_read((word)source, length);
    source[length] = 0;
}

static JSValue compile(JSContext *ctx)
{
    read_source(ctx);
    return JS_Eval(ctx, source, source_length, FILE_NAME,
                   JS_EVAL_TYPE_MODULE | JS_EVAL_FLAG_COMPILE_ONLY);
}

EXPORT(check) int32_t check(void)
{
    JSValue module = compile(context);
    if (!JS_IsException(module)) {
        JSModuleDef *made = JS_VALUE_GET_PTR(module);
        if (!js_resolve_module(context, made) && !js_create_module_function(context, made)
            && !js_link_module(context, made)) /* the imports exist */
            return 0;
    }
    JSValue error = JS_GetException(context), message;
    int line = 1, column = 1;
    const uint8_t *at = (const uint8_t *)source, *end = at + source_length;
    if (parse_error_at >= at && parse_error_at <= end) {
        for (; at < parse_error_at; at++) {
            column = *at == '\n' ? 1 : column + ((*at & 0xC0) != 0x80);
            line += *at == '\n';
        }
    }
    static char words[1000];
    snprintf(words, sizeof words, "line %d, column %d: ", line, column);
    message = JS_GetPropertyStr(context, error, "message");
    append(words, sizeof words, context, JS_IsException(message) ? error : message);
    fail_with(words);
    return 1;
}

static void run_jobs(JSContext *ctx)
{
    JSContext *failed;
    int more;
    while ((more = JS_ExecutePendingJob(runtime, &failed)) > 0)
        ;
    if (more < 0)
        fail_by_exception(failed);
}

EXPORT(lip_main) int32_t lip_main(void)
{
    JSContext *ctx = context;
    lip_random((word)&ctx->random_state, sizeof ctx->random_state);
    if (!ctx->random_state)
        ctx->random_state = 1;
    JSValue module = compile(ctx);
    if (JS_IsException(module))
        fail_by_exception(ctx);
    JSModuleDef *definition = JS_VALUE_GET_PTR(module);
    JSValue done = JS_EvalFunction(ctx, module);
    if (JS_IsException(done))
        fail_by_exception(ctx);
    JS_FreeValue(ctx, done);
    JSValue exported = js_get_module_ns(ctx, definition);
    JSValue promise = JS_Call(ctx, run_function, JS_UNDEFINED, 1, (JSValueConst *)&exported);
    if (JS_IsException(promise))
        fail_by_exception(ctx);
    JSPromiseData *state = JS_GetOpaque(promise, JS_CLASS_PROMISE);
    for (;;) {
        run_jobs(ctx);
        if (state->promise_state != JS_PROMISE_PENDING)
            break;
        if (!pending_count) {
            if (!JS_IsUndefined(unhandled_error))
                fail(ctx, unhandled_error);
            fail_with("the program awaits a promise that nothing is left to settle");
        }
        if (settle_one(ctx))
            fail_by_exception(ctx);
    }
    if (state->promise_state == JS_PROMISE_REJECTED)
        fail(ctx, state->promise_result);
    if (!JS_IsUndefined(unhandled_error))
        fail(ctx, unhandled_error);
    int32_t code = 0;
    JS_ToInt32(ctx, &code, state->promise_result);
    return code;
}
