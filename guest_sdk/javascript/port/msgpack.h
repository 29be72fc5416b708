/* MessagePack of JavaScript values: arguments of calls are written, results of the server are read. */
#define PACK_DEPTH_MAX 48
#define PACK_BYTES_MAX (4 << 20)

static int pack_value(JSContext *ctx, DynBuf *out, JSValueConst value, int depth, int bias);

/* UTF-8 of a string; a lone surrogate is U+FFFD. NULL: an exception. Free it by JS_FreeCString. */
static const char *text_of(JSContext *ctx, JSValueConst value, size_t *length)
{
    const char *text = JS_ToCStringLen(ctx, length, value);
    uint8_t *at = (uint8_t *)text, *end = at ? at + *length : at;
    for (; at < end; at++) { /* only a copy has bytes that are not ASCII: it may be changed */
        if (*at == 0xED && end - at >= 3 && at[1] >= 0xA0) {
            at[0] = 0xEF, at[1] = 0xBF, at[2] = 0xBD;
        }
    }
    return text;
}

/* The bytes of a Uint8Array or an ArrayBuffer; 0: it is none. No script runs meanwhile. */
static int bytes_of(JSContext *ctx, JSValueConst value, uint8_t **bytes, size_t *length)
{
    JSObject *object;
    if (!JS_IsObject(value))
        return 0;
    object = JS_VALUE_GET_OBJ(value);
    if (object->class_id == JS_CLASS_ARRAY_BUFFER) {
        JSArrayBuffer *buffer = object->u.array_buffer;
        *bytes = buffer->data;
        *length = buffer->detached ? 0 : buffer->byte_length;
        return 1;
    }
    if (object->class_id == JS_CLASS_UINT8_ARRAY || object->class_id == JS_CLASS_UINT8C_ARRAY) {
        *bytes = object->u.array.u.uint8_ptr;
        *length = object->u.array.count; /* 0 where it is detached */
        return 1;
    }
    return 0;
}

/* A typed array of a whole buffer, which it takes. */
static JSValue view_of(JSContext *ctx, JSValue buffer, int class)
{
    JSValueConst arguments[] = {buffer, JS_UNDEFINED, JS_UNDEFINED};
    if (JS_IsException(buffer))
        return buffer;
    JSValue view = js_typed_array_constructor(ctx, JS_UNDEFINED, 3, arguments, class);
    JS_FreeValue(ctx, buffer);
    return view;
}

static int pack_head(DynBuf *out, int fixed, int fixed_max, int wide, size_t count)
{
    if (count <= (size_t)fixed_max)
        return dbuf_putc(out, fixed | count);
    if (count <= 0xFFFF) {
        uint8_t head[] = {wide, count >> 8, count};
        return dbuf_put(out, head, 3);
    }
    uint8_t head[] = {wide + 1, count >> 24, count >> 16, count >> 8, count};
    return dbuf_put(out, head, 5);
}

static int pack_u64(DynBuf *out, int kind, uint64_t value)
{
    uint8_t bytes[9] = {kind};
    for (int i = 0; i < 8; i++)
        bytes[1 + i] = value >> (56 - 8 * i);
    return dbuf_put(out, bytes, 9);
}

static int pack_text(JSContext *ctx, DynBuf *out, JSValueConst value)
{
    size_t length;
    const char *text = text_of(ctx, value, &length);
    if (!text)
        return -1;
    int failed = pack_head(out, 0xA0, 31, 0xDA, length) || dbuf_put(out, (uint8_t *)text, length);
    JS_FreeCString(ctx, text);
    return failed ? -1 : 0;
}

static int pack_number(JSContext *ctx, DynBuf *out, JSValueConst value)
{
    double number;
    if (JS_ToFloat64(ctx, &number, value))
        return -1;
    if (number >= 0 && number < 9007199254740992.0 && number == (double)(uint64_t)number) {
        if (number < 128)
            return dbuf_putc(out, (int)number);
        return pack_u64(out, 0xCF, (uint64_t)number);
    }
    if (number < 0 && number > -9007199254740992.0 && number == (double)(int64_t)number)
        return pack_u64(out, 0xD3, (uint64_t)(int64_t)number);
    uint64_t bits;
    memcpy(&bits, &number, 8);
    return pack_u64(out, 0xCB, bits);
}

static int pack_array(JSContext *ctx, DynBuf *out, JSValueConst value, int depth)
{
    int64_t length;
    if (js_get_length64(ctx, &length, value))
        return -1;
    if (length < 0 || length > PACK_BYTES_MAX) {
        JS_ThrowRangeError(ctx, "a list of %lld items is too long", (long long)length);
        return -1;
    }
    if (pack_head(out, 0x90, 15, 0xDC, length))
        return -1;
    for (int64_t i = 0; i < length; i++) {
        JSValue item = JS_GetPropertyInt64(ctx, value, i);
        int failed = JS_IsException(item) || pack_value(ctx, out, item, depth, 0);
        JS_FreeValue(ctx, item);
        if (failed)
            return -1;
    }
    return 0;
}

static int pack_object(JSContext *ctx, DynBuf *out, JSValueConst value, int depth, int bias)
{
    JSPropertyEnum *keys;
    uint32_t count, kept = 0, index;
    if (JS_GetOwnPropertyNames(ctx, &keys, &count, value, JS_GPN_STRING_MASK | JS_GPN_ENUM_ONLY))
        return -1;
    size_t head = out->size;
    static const uint8_t map32[5] = {0xDF};
    int failed = dbuf_put(out, map32, 5);
    for (uint32_t i = 0; i < count && !failed; i++) {
        JSValue item = JS_GetProperty(ctx, value, keys[i].atom), key;
        if (JS_IsException(item)) {
            failed = -1;
        } else if (!JS_IsUndefined(item) && !JS_IsFunction(ctx, item)) {
            kept++;
            if (bias && JS_AtomIsArrayIndex(ctx, &index, keys[i].atom)) {
                failed = pack_u64(out, 0xCF, index);
            } else {
                key = JS_AtomToString(ctx, keys[i].atom);
                failed = JS_IsException(key) || pack_text(ctx, out, key);
                JS_FreeValue(ctx, key);
            }
            static const char name[] = "bias";
            const char *said = JS_AtomToCString(ctx, keys[i].atom);
            int biases = said && depth == 1 && !strcmp(said, name);
            JS_FreeCString(ctx, said);
            failed = failed || !said || pack_value(ctx, out, item, depth, biases);
        }
        JS_FreeValue(ctx, item);
    }
    js_free_prop_enum(ctx, keys, count);
    if (failed)
        return -1;
    for (int i = 0; i < 4; i++)
        out->buf[head + 1 + i] = kept >> (24 - 8 * i);
    return 0;
}

/* Write a value; -1: an exception, or `out` is out of memory. Scripts may run: getters, proxies. */
static int pack_value(JSContext *ctx, DynBuf *out, JSValueConst value, int depth, int bias)
{
    uint8_t *bytes;
    size_t length;
    int64_t whole;
    if (depth >= PACK_DEPTH_MAX || out->size > PACK_BYTES_MAX) {
        JS_ThrowRangeError(ctx, "the value is too deep, or too large");
        return -1;
    }
    switch (JS_VALUE_GET_NORM_TAG(value)) {
    case JS_TAG_NULL:
    case JS_TAG_UNDEFINED:
        return dbuf_putc(out, 0xC0);
    case JS_TAG_BOOL:
        return dbuf_putc(out, 0xC2 + JS_VALUE_GET_BOOL(value));
    case JS_TAG_INT:
    case JS_TAG_FLOAT64:
        return pack_number(ctx, out, value);
    case JS_TAG_BIG_INT:
        if (JS_ToBigInt64(ctx, &whole, value))
            return -1;
        return pack_u64(out, 0xCF, whole); /* seeds: modulo 2^64 */
    case JS_TAG_STRING:
        return pack_text(ctx, out, value);
    case JS_TAG_OBJECT:
        if (bytes_of(ctx, value, &bytes, &length)) {
            uint8_t head[] = {0xC6, length >> 24, length >> 16, length >> 8, length};
            return dbuf_put(out, head, 5) || dbuf_put(out, bytes, length) ? -1 : 0;
        }
        int array = JS_IsArray(ctx, value);
        if (array < 0)
            return -1;
        if (JS_VALUE_GET_OBJ(value)->class_id >= JS_CLASS_UINT8C_ARRAY
            && JS_VALUE_GET_OBJ(value)->class_id <= JS_CLASS_FLOAT64_ARRAY)
            array = 1;
        if (JS_IsFunction(ctx, value))
            break;
        return array ? pack_array(ctx, out, value, depth + 1)
                     : pack_object(ctx, out, value, depth + 1, bias);
    }
    JS_ThrowTypeError(ctx, "the server takes no function, symbol or other such value");
    return -1;
}

/* --- Reading ------------------------------------------------------------------------------------ */
typedef struct {
    const uint8_t *at, *end;
} Packed;

static uint64_t read_be(Packed *in, int bytes)
{
    uint64_t value = 0;
    if (in->end - in->at < bytes) {
        in->at = in->end;
        return 0;
    }
    while (bytes--)
        value = value << 8 | *in->at++;
    return value;
}

static JSValue unpack(JSContext *ctx, Packed *in, int depth);

static JSValue unpack_bytes(JSContext *ctx, Packed *in, uint64_t length, int text)
{
    if (length > (uint64_t)(in->end - in->at))
        length = in->end - in->at;
    const uint8_t *from = in->at;
    in->at += length;
    if (text)
        return JS_NewStringLen(ctx, (const char *)from, length);
    return view_of(ctx, JS_NewArrayBufferCopy(ctx, from, length), JS_CLASS_UINT8_ARRAY);
}

static JSValue unpack_many(JSContext *ctx, Packed *in, uint64_t count, int map, int depth)
{
    JSValue made = map ? JS_NewObject(ctx) : JS_NewArray(ctx);
    for (uint64_t i = 0; i < count && in->at < in->end && !JS_IsException(made); i++) {
        JSAtom name = JS_ATOM_NULL;
        if (map) {
            JSValue key = unpack(ctx, in, depth);
            name = JS_ValueToAtom(ctx, key);
            JS_FreeValue(ctx, key);
        }
        JSValue item = unpack(ctx, in, depth);
        int failed = JS_IsException(item)
            || (map ? name == JS_ATOM_NULL || JS_DefinePropertyValue(ctx, made, name, item, JS_PROP_C_W_E) < 0
                    : JS_DefinePropertyValueUint32(ctx, made, i, item, JS_PROP_C_W_E) < 0);
        JS_FreeAtom(ctx, name);
        if (failed) {
            JS_FreeValue(ctx, made);
            return JS_EXCEPTION;
        }
    }
    return made;
}

/* Read one value of what the server has written. */
static JSValue unpack(JSContext *ctx, Packed *in, int depth)
{
    if (in->at >= in->end || depth > PACK_DEPTH_MAX)
        return JS_ThrowRangeError(ctx, "the server's answer is cut, or too deep");
    int kind = *in->at++;
    if (kind < 0x80)
        return JS_NewInt32(ctx, kind);
    if (kind >= 0xE0)
        return JS_NewInt32(ctx, kind - 0x100);
    if (kind < 0x90)
        return unpack_many(ctx, in, kind & 15, 1, depth + 1);
    if (kind < 0xA0)
        return unpack_many(ctx, in, kind & 15, 0, depth + 1);
    if (kind < 0xC0)
        return unpack_bytes(ctx, in, kind & 31, 1);
    union { uint64_t u; double d; } f64;
    union { uint32_t u; float f; } f32;
    switch (kind) {
    case 0xC2:
    case 0xC3:
        return JS_NewBool(ctx, kind & 1);
    case 0xC4: case 0xC5: case 0xC6:
        return unpack_bytes(ctx, in, read_be(in, 1 << (kind - 0xC4)), 0);
    case 0xCA:
        f32.u = read_be(in, 4);
        return JS_NewFloat64(ctx, f32.f);
    case 0xCB:
        f64.u = read_be(in, 8);
        return JS_NewFloat64(ctx, f64.d);
    case 0xCC: case 0xCD: case 0xCE: case 0xCF:
        return JS_NewFloat64(ctx, (double)read_be(in, 1 << (kind - 0xCC)));
    case 0xD0:
        return JS_NewInt32(ctx, (int8_t)read_be(in, 1));
    case 0xD1:
        return JS_NewInt32(ctx, (int16_t)read_be(in, 2));
    case 0xD2:
        return JS_NewInt32(ctx, (int32_t)read_be(in, 4));
    case 0xD3:
        return JS_NewInt64(ctx, (int64_t)read_be(in, 8));
    case 0xD9: case 0xDA: case 0xDB:
        return unpack_bytes(ctx, in, read_be(in, 1 << (kind - 0xD9)), 1);
    case 0xDC: case 0xDD:
        return unpack_many(ctx, in, read_be(in, kind == 0xDC ? 2 : 4), 0, depth + 1);
    case 0xDE: case 0xDF:
        return unpack_many(ctx, in, read_be(in, kind == 0xDE ? 2 : 4), 1, depth + 1);
    default:
        return JS_NULL;
    }
}
