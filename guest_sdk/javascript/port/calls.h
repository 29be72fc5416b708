/* The calls of `lip` as functions of JavaScript. One table says what each takes and gives; the one
   function below reads arguments in two passes. Only the first can run scripts (getters, proxies),
   and it copies what it reads. The second takes pointers into buffers, and the call follows it. */

typedef struct {
    const char *name;
    /* i integer, u unsigned, s bytes of a string or Uint8Array, t tokens, p positions or nothing,
       m a value in MessagePack or nothing */
    const char *takes;
    /* n a number, v nothing, b bytes, m a value in MessagePack, t tokens, k tokens of a known number */
    char gives;
    void *call;
    int words; /* the arguments of the call */
} Call;

#define ARGUMENTS_MAX 8
#define CALLS(f) \
    f(send, "s", 'v', 2) f(recv, "", 'n', 0) f(log, "is", 'v', 3) f(spawn, "m", 'n', 2) \
    f(join, "u", 'n', 1) f(channel_send, "ss", 'v', 4) f(channel_recv, "s", 'n', 2) \
    f(cancel, "i", 'n', 1) f(last_error, "", 'b', 2) f(input_read, "", 'b', 2) \
    f(model_info, "", 'm', 2) f(tokenize, "s", 't', 4) f(detokenize, "t", 'b', 4) \
    f(chat, "m", 't', 4) f(chat_with, "m", 't', 4) f(pred, "itpm", 'n', 6) \
    f(generate, "itm", 'n', 5) f(constraint, "is", 'n', 3) f(constraint_close, "i", 'v', 1) \
    f(kv_create, "", 'n', 0) f(kv_open, "si", 'n', 3) f(kv_fork, "i", 'n', 1) \
    f(kv_extract, "it", 'n', 3) f(kv_append, "iiuu", 'v', 4) f(kv_truncate, "iu", 'v', 2) \
    f(kv_len, "i", 'n', 1) f(kv_stat, "i", 'm', 3) f(kv_tokens, "iu", 'k', 4) \
    f(kv_save, "isi", 'v', 4) f(kv_remove, "s", 'v', 2) f(kv_list_after, "ssi", 'm', 7) \
    f(kv_grant, "iuis", 'v', 5) f(kv_granted, "s", 'n', 2) f(kv_offer, "i", 'n', 1) \
    f(kv_match, "t", 'n', 2) f(kv_close, "i", 'n', 1) f(http, "m", 'n', 2) f(tool, "m", 'n', 2) \
    f(tools, "", 'm', 2)
#define ROW(name, takes, gives, words) {#name, takes, gives, (void *)lip_##name, words},
static const Call calls[] = {CALLS(ROW)};

static const struct { int number; const char *name; } errnos[] = {
    {2, "ENOENT"}, {5, "EIO"}, {9, "EBADF"}, {11, "EAGAIN"}, {12, "ENOMEM"}, {13, "EACCES"},
    {14, "EFAULT"}, {16, "EBUSY"}, {17, "EEXIST"}, {22, "EINVAL"}, {27, "EFBIG"}, {28, "ENOSPC"},
    {32, "EPIPE"}, {36, "ENAMETOOLONG"}, {38, "ENOSYS"}, {110, "ETIMEDOUT"}, {122, "EDQUOT"},
    {125, "ECANCELED"},
};

/* An Error: name EDQUOT, errno 122, call "kv_fork"; `words` are of last_error. */
static JSValue make_error(JSContext *ctx, const char *call, int number, int words)
{
    const char *name = "EIO";
    char said[512];
    int length = words ? lip_last_error((word)said, sizeof said) : 0;
    for (size_t i = 0; i < countof(errnos); i++)
        if (errnos[i].number == number)
            name = errnos[i].name;
    if (length < 0 || length > (int)sizeof said)
        length = 0;
    JSValue error = JS_NewError(ctx);
    if (JS_IsException(error))
        return error;
    char message[700];
    snprintf(message, sizeof message, length ? "%s failed: %.*s" : "%s failed", call, length, said);
    JS_DefinePropertyValueStr(ctx, error, "message", JS_NewString(ctx, message), JS_PROP_C_W_E);
    JS_DefinePropertyValueStr(ctx, error, "name", JS_NewString(ctx, name), JS_PROP_C_W_E);
    JS_DefinePropertyValueStr(ctx, error, "errno", JS_NewInt32(ctx, number), JS_PROP_C_W_E);
    JS_DefinePropertyValueStr(ctx, error, "call", JS_NewString(ctx, call), JS_PROP_C_W_E);
    build_backtrace(ctx, error, NULL, 0, 0);
    return error;
}

static int has_words(const char *call)
{
    static const char *const with[] = {"http", "tool", "tools", "chat", "chat_with", "constraint"};
    for (size_t i = 0; i < countof(with); i++)
        if (!strcmp(call, with[i]))
            return 1;
    return 0;
}

static int32_t invoke(const Call *call, const word *w)
{
    typedef word W;
    void *f = call->call;
    switch (call->words) {
    case 0: return ((int32_t(*)(void))f)();
    case 1: return ((int32_t(*)(W))f)(w[0]);
    case 2: return ((int32_t(*)(W, W))f)(w[0], w[1]);
    case 3: return ((int32_t(*)(W, W, W))f)(w[0], w[1], w[2]);
    case 4: return ((int32_t(*)(W, W, W, W))f)(w[0], w[1], w[2], w[3]);
    case 5: return ((int32_t(*)(W, W, W, W, W))f)(w[0], w[1], w[2], w[3], w[4]);
    case 6: return ((int32_t(*)(W, W, W, W, W, W))f)(w[0], w[1], w[2], w[3], w[4], w[5]);
    default: return ((int32_t(*)(W, W, W, W, W, W, W))f)(w[0], w[1], w[2], w[3], w[4], w[5], w[6]);
    }
}

typedef struct {
    const char *text;  /* of a string, to free */
    uint32_t *tokens;  /* a copy, to free */
    uint32_t count;
    DynBuf packed;
    int is_packed;
} Held;

/* Copy tokens of a list; typed arrays are taken in the second pass. -1: an exception. */
static int copy_tokens(JSContext *ctx, JSValueConst value, Held *held)
{
    int64_t length;
    if (js_get_length64(ctx, &length, value))
        return -1;
    if (length < 0 || length > PACK_BYTES_MAX / 4) {
        JS_ThrowRangeError(ctx, "a list of %lld tokens is too long", (long long)length);
        return -1;
    }
    held->tokens = js_malloc(ctx, 4 * length + 4);
    if (!held->tokens)
        return -1;
    for (held->count = 0; held->count < length; held->count++) {
        JSValue item = JS_GetPropertyUint32(ctx, value, held->count);
        int failed = JS_IsException(item) || JS_ToUint32(ctx, &held->tokens[held->count], item);
        JS_FreeValue(ctx, item);
        if (failed)
            return -1;
    }
    return 0;
}

static int is_words(JSValueConst value)
{
    if (!JS_IsObject(value))
        return 0;
    int class = JS_VALUE_GET_OBJ(value)->class_id;
    return class == JS_CLASS_UINT32_ARRAY || class == JS_CLASS_INT32_ARRAY;
}

/* The first pass: copies of what scripts may change. -1: an exception. */
static int read_argument(JSContext *ctx, char kind, JSValueConst value, Held *held, word *w)
{
    uint8_t *bytes;
    size_t length;
    uint32_t number;
    switch (kind) {
    case 'i':
    case 'u':
        if (JS_ToUint32(ctx, &number, value))
            return -1;
        *w = (int32_t)number;
        return 0;
    case 's':
        if (bytes_of(ctx, value, &bytes, &length))
            return 0;
        held->text = text_of(ctx, value, &length);
        held->count = length;
        return held->text ? 0 : -1;
    case 'p':
        if (JS_IsUndefined(value) || JS_IsNull(value))
            return 0;
        /* fall through */
    case 't':
        if (is_words(value))
            return 0;
        return JS_IsObject(value) ? copy_tokens(ctx, value, held)
                                  : (JS_ThrowTypeError(ctx, "tokens must be a list"), -1);
    default:
        held->is_packed = 1;
        js_dbuf_init(ctx, &held->packed);
        if (JS_IsUndefined(value))
            return 0;
        if (pack_value(ctx, &held->packed, value, 0, 0) || dbuf_error(&held->packed)) {
            if (JS_IsNull(ctx->rt->current_exception))
                JS_ThrowOutOfMemory(ctx);
            return -1;
        }
        return 0;
    }
}

/* The second pass: no script runs from here to the call. Returns how many words it has written. */
static int place_argument(JSContext *ctx, char kind, JSValueConst value, Held *held, word *w)
{
    uint8_t *bytes = NULL;
    size_t length = 0;
    switch (kind) {
    case 'i':
    case 'u':
        return 1;
    case 's':
        if (held->text)
            bytes = (uint8_t *)held->text, length = held->count;
        else
            bytes_of(ctx, value, &bytes, &length);
        break;
    case 't':
    case 'p':
        if (held->tokens) {
            bytes = (uint8_t *)held->tokens, length = held->count;
        } else if (is_words(value)) {
            bytes = (uint8_t *)JS_VALUE_GET_OBJ(value)->u.array.u.uint32_ptr;
            length = JS_VALUE_GET_OBJ(value)->u.array.count;
        }
        w[0] = (word)bytes;
        w[1] = length; /* of positions: the next argument overwrites it */
        return kind == 't' ? 2 : 1;
    default:
        bytes = held->packed.buf, length = held->packed.size;
    }
    w[0] = (word)bytes;
    w[1] = length;
    return 2;
}

static void free_bytes(JSRuntime *runtime, void *opaque, void *bytes)
{
    js_free_rt(runtime, bytes);
}

/* A result in memory: the buffer grows until it fits. `unit` is 4 where it counts tokens. */
static JSValue call_filling(JSContext *ctx, const Call *call, word *w, int at, word known)
{
    int unit = call->gives == 't' || call->gives == 'k' ? 4 : 1;
    word capacity = known >= 0 ? known : 1024 / unit;
    uint8_t *out = NULL;
    int32_t length;
    for (;;) {
        uint8_t *grown = js_realloc(ctx, out, capacity * unit + 4);
        if (!grown) {
            js_free(ctx, out);
            return JS_EXCEPTION;
        }
        out = grown;
        if (known >= 0)
            w[at] = known, w[at + 1] = (word)out; /* n, out */
        else
            w[at] = (word)out, w[at + 1] = capacity;
        length = invoke(call, w);
        if (known >= 0 && length >= 0)
            length = known;
        if (length <= capacity)
            break;
        capacity = length;
    }
    if (length < 0) {
        js_free(ctx, out);
        JSValue error = make_error(ctx, call->name, -length, has_words(call->name));
        return JS_IsException(error) ? error : JS_Throw(ctx, error);
    }
    if (call->gives == 'm') {
        Packed in = {out, out + length};
        JSValue value = unpack(ctx, &in, 0);
        js_free(ctx, out);
        return value;
    }
    JSValue buffer = JS_NewArrayBuffer(ctx, out, (size_t)length * unit, free_bytes, NULL, FALSE);
    return view_of(ctx, buffer, unit == 4 ? JS_CLASS_UINT32_ARRAY : JS_CLASS_UINT8_ARRAY);
}

static JSValue js_call(JSContext *ctx, JSValueConst this, int argc, JSValueConst *argv, int magic)
{
    const Call *call = &calls[magic];
    Held held[ARGUMENTS_MAX] = {0};
    word w[ARGUMENTS_MAX + 4] = {0};
    word numbers[ARGUMENTS_MAX] = {0};
    int count = strlen(call->takes), at = 0, failed = 0;
    uint32_t known = 0;
    JSValue result = JS_EXCEPTION;
    for (int i = 0; i < count && !failed; i++) {
        JSValueConst value = i < argc ? argv[i] : JS_UNDEFINED;
        failed = read_argument(ctx, call->takes[i], value, &held[i], &numbers[i]);
    }
    if (!failed && call->gives == 'k')
        failed = JS_ToUint32(ctx, &known, count < argc ? argv[count] : JS_UNDEFINED);
    if (!failed && known > PACK_BYTES_MAX / 4) {
        JS_ThrowRangeError(ctx, "%u tokens are too many", known);
        failed = 1;
    }
    if (!failed) {
        word tokens = -1;
        for (int i = 0; i < count; i++) {
            JSValueConst value = i < argc ? argv[i] : JS_UNDEFINED;
            w[at] = numbers[i];
            int words = place_argument(ctx, call->takes[i], value, &held[i], &w[at]);
            if (call->takes[i] == 't')
                tokens = w[at + 1];
            /* The call reads as many positions as there are tokens. */
            if (call->takes[i] == 'p' && w[at] && w[at + 1] != tokens) {
                JS_ThrowRangeError(ctx, "there must be one position for each token");
                failed = 1;
            }
            at += words;
        }
        if (!strcmp(call->name, "kv_extract"))
            w[2] /= 2; /* pairs */
        if (failed) {
        } else if (strchr("bmtk", call->gives)) {
            result = call_filling(ctx, call, w, at, call->gives == 'k' ? (word)known : -1);
        } else {
            int32_t code = invoke(call, w);
            if (code >= 0) {
                result = call->gives == 'v' ? JS_UNDEFINED : JS_NewInt32(ctx, code);
            } else {
                JSValue error = make_error(ctx, call->name, -code, has_words(call->name));
                result = JS_IsException(error) ? error : JS_Throw(ctx, error);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        JS_FreeCString(ctx, held[i].text);
        js_free(ctx, held[i].tokens);
        if (held[i].is_packed)
            dbuf_free(&held[i].packed);
    }
    return result;
}
