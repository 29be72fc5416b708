// MessagePack to Python objects and back.

#include <string.h>

#include "py/mpz.h"
#include "py/objint.h"
#include "py/objstr.h"
#include "py/runtime.h"
#include "msgpack.h"

#define DEPTH_MAX (64)

// --- Packing ---------------------------------------------------------------------------------------

typedef struct {
    vstr_t vstr;
    bool single; // floats have 32 bits
} writer_t;

static void put(vstr_t *out, byte kind, uint64_t value, size_t size) {
    byte *at = (byte *)vstr_add_len(out, 1 + size);
    *at = kind;
    for (size_t i = size; i > 0; --i, value >>= 8) {
        at[i] = (byte)value;
    }
}

// A length or count: `small` with up to `small_max` in one byte, else the widths from `kind` on.
static void put_size(vstr_t *out, byte small, size_t small_max, const byte kinds[3], size_t size) {
    if (size <= small_max && small != 0) {
        vstr_add_byte(out, (byte)(small | size));
    } else if (size < 0x100 && kinds[0] != 0) {
        put(out, kinds[0], size, 1);
    } else if (size < 0x10000) {
        put(out, kinds[1], size, 2);
    } else {
        put(out, kinds[2], size, 4);
    }
}

static void put_int(vstr_t *out, int64_t value) {
    if (value >= 0) {
        if (value < 0x80) {
            vstr_add_byte(out, (byte)value);
        } else if (value < 0x100) {
            put(out, 0xcc, value, 1);
        } else if (value < 0x10000) {
            put(out, 0xcd, value, 2);
        } else if (value < 0x100000000LL) {
            put(out, 0xce, value, 4);
        } else {
            put(out, 0xcf, value, 8);
        }
    } else if (value >= -32) {
        vstr_add_byte(out, (byte)value);
    } else {
        put(out, 0xd3, value, 8);
    }
}

static void put_long(vstr_t *out, mp_obj_t value) {
    byte bytes[8];
    mp_obj_t wide = mp_binary_op(MP_BINARY_OP_RSHIFT, value, MP_OBJ_NEW_SMALL_INT(64));
    bool negative = mp_obj_int_sign(value) < 0;
    if (wide != MP_OBJ_NEW_SMALL_INT(0) && wide != MP_OBJ_NEW_SMALL_INT(-1)) {
        mp_raise_ValueError(MP_ERROR_TEXT("an integer of more than 64 bits"));
    }
    mp_obj_int_to_bytes_impl(value, true, sizeof(bytes), bytes);
    uint64_t word = 0;
    for (size_t i = 0; i < sizeof(bytes); ++i) {
        word = word << 8 | bytes[i];
    }
    if (!negative) {
        put(out, 0xcf, word, 8);
    } else if ((int64_t)word < 0) {
        put(out, 0xd3, word, 8);
    } else {
        mp_raise_ValueError(MP_ERROR_TEXT("an integer of more than 64 bits"));
    }
}

static void pack(writer_t *writer, mp_obj_t value, size_t depth);

static void pack_map(writer_t *writer, mp_map_t *map, size_t depth) {
    put_size(&writer->vstr, 0x80, 15, (const byte[]) {0, 0xde, 0xdf}, map->used);
    for (size_t i = 0; i < map->alloc; ++i) {
        if (mp_map_slot_is_filled(map, i)) {
            pack(writer, map->table[i].key, depth);
            pack(writer, map->table[i].value, depth);
        }
    }
}

static void pack(writer_t *writer, mp_obj_t value, size_t depth) {
    vstr_t *out = &writer->vstr;
    size_t len;
    mp_obj_t *items;
    if (depth == 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("nested too deeply"));
    }
    if (value == mp_const_none) {
        vstr_add_byte(out, 0xc0);
    } else if (mp_obj_is_bool(value)) {
        vstr_add_byte(out, value == mp_const_true ? 0xc3 : 0xc2);
    } else if (mp_obj_is_small_int(value)) {
        put_int(out, MP_OBJ_SMALL_INT_VALUE(value));
    } else if (mp_obj_is_type(value, &mp_type_int)) {
        put_long(out, value);
    } else if (mp_obj_is_float(value)) {
        double number = mp_obj_get_float(value);
        if (writer->single) {
            float narrow = (float)number;
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof(bits));
            put(out, 0xca, bits, 4);
        } else {
            uint64_t bits;
            memcpy(&bits, &number, sizeof(bits));
            put(out, 0xcb, bits, 8);
        }
    } else if (mp_obj_is_str(value)) {
        const char *text = mp_obj_str_get_data(value, &len);
        put_size(out, 0xa0, 31, (const byte[]) {0xd9, 0xda, 0xdb}, len);
        vstr_add_strn(out, text, len);
    } else if (mp_obj_is_type(value, &mp_type_list) || mp_obj_is_type(value, &mp_type_tuple)) {
        mp_obj_get_array(value, &len, &items);
        put_size(out, 0x90, 15, (const byte[]) {0, 0xdc, 0xdd}, len);
        for (size_t i = 0; i < len; ++i) {
            pack(writer, items[i], depth - 1);
        }
    } else if (mp_obj_is_dict_or_ordereddict(value)) {
        pack_map(writer, mp_obj_dict_get_map(value), depth - 1);
    } else {
        mp_buffer_info_t buffer;
        if (!mp_get_buffer(value, &buffer, MP_BUFFER_READ)) {
            mp_raise_msg_varg(&mp_type_TypeError, MP_ERROR_TEXT("a %s cannot be sent"), mp_obj_get_type_str(value));
        }
        put_size(out, 0, 0, (const byte[]) {0xc4, 0xc5, 0xc6}, buffer.len);
        vstr_add_strn(out, buffer.buf, buffer.len);
    }
}

mp_obj_t symphony_pack(mp_obj_t value, bool single) {
    writer_t writer = {.single = single};
    vstr_init(&writer.vstr, 64);
    pack(&writer, value, DEPTH_MAX);
    return mp_obj_new_bytes_from_vstr(&writer.vstr);
}

// --- Unpacking -------------------------------------------------------------------------------------

typedef struct {
    mp_obj_t held; // what the bytes are of
    const byte *at;
    size_t left;
} reader_t;

static const byte *take(reader_t *in, size_t len) {
    if (len > in->left) {
        mp_raise_ValueError(MP_ERROR_TEXT("MessagePack that ends too early"));
    }
    const byte *taken = in->at;
    in->at += len;
    in->left -= len;
    return taken;
}

static uint64_t number(reader_t *in, size_t size) {
    const byte *bytes = take(in, size);
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static mp_obj_t unpack(reader_t *in, size_t depth);

static mp_obj_t unpack_list(reader_t *in, size_t count, size_t depth) {
    if (count > in->left) {
        mp_raise_ValueError(MP_ERROR_TEXT("MessagePack that ends too early"));
    }
    mp_obj_t list = mp_obj_new_list(0, NULL);
    for (size_t i = 0; i < count; ++i) {
        mp_obj_list_append(list, unpack(in, depth));
    }
    return list;
}

static mp_obj_t unpack_map(reader_t *in, size_t count, size_t depth) {
    if (count > in->left) {
        mp_raise_ValueError(MP_ERROR_TEXT("MessagePack that ends too early"));
    }
    mp_obj_t map = mp_obj_new_dict(count);
    for (size_t i = 0; i < count; ++i) {
        mp_obj_t key = unpack(in, depth);
        mp_obj_dict_store(map, key, unpack(in, depth));
    }
    return map;
}

static mp_obj_t unpack_bytes(reader_t *in, size_t len, bool text) {
    const byte *bytes = take(in, len);
    return text ? mp_obj_new_str((const char *)bytes, len) : mp_obj_new_bytes(bytes, len);
}

static mp_obj_t unpack_float(reader_t *in, bool wide) {
    uint64_t word = number(in, wide ? 8 : 4);
    uint32_t bits = (uint32_t)word;
    float narrow;
    double value;
    memcpy(&narrow, &bits, sizeof(narrow));
    memcpy(&value, &word, sizeof(value));
    return mp_obj_new_float(wide ? value : narrow);
}

static mp_obj_t unpack(reader_t *in, size_t depth) {
    byte kind = *take(in, 1);
    if (depth == 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("nested too deeply"));
    }
    if (kind < 0x80) {
        return MP_OBJ_NEW_SMALL_INT(kind);
    } else if (kind < 0x90) {
        return unpack_map(in, kind & 15, depth - 1);
    } else if (kind < 0xa0) {
        return unpack_list(in, kind & 15, depth - 1);
    } else if (kind < 0xc0) {
        return unpack_bytes(in, kind & 31, true);
    } else if (kind >= 0xe0) {
        return MP_OBJ_NEW_SMALL_INT((int8_t)kind);
    }
    switch (kind) {
        case 0xc0:
            return mp_const_none;
        case 0xc2:
            return mp_const_false;
        case 0xc3:
            return mp_const_true;
        case 0xc4:
        case 0xc5:
        case 0xc6:
            return unpack_bytes(in, (size_t)number(in, (size_t)1 << (kind - 0xc4)), false);
        case 0xca:
        case 0xcb:
            return unpack_float(in, kind == 0xcb);
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
            return mp_obj_new_int_from_ull(number(in, (size_t)1 << (kind - 0xcc)));
        case 0xd0:
            return mp_obj_new_int((int8_t)number(in, 1));
        case 0xd1:
            return mp_obj_new_int((int16_t)number(in, 2));
        case 0xd2:
            return mp_obj_new_int((int32_t)number(in, 4));
        case 0xd3:
            return mp_obj_new_int_from_ll((int64_t)number(in, 8));
        case 0xd9:
        case 0xda:
        case 0xdb:
            return unpack_bytes(in, (size_t)number(in, (size_t)1 << (kind - 0xd9)), true);
        case 0xdc:
        case 0xdd:
            return unpack_list(in, (size_t)number(in, kind == 0xdc ? 2 : 4), depth - 1);
        case 0xde:
        case 0xdf:
            return unpack_map(in, (size_t)number(in, kind == 0xde ? 2 : 4), depth - 1);
        default:
            mp_raise_ValueError(MP_ERROR_TEXT("MessagePack of an unknown kind"));
    }
}

mp_obj_t symphony_unpack(mp_obj_t packed) {
    mp_buffer_info_t buffer;
    mp_get_buffer_raise(packed, &buffer, MP_BUFFER_READ);
    reader_t in = {packed, buffer.buf, buffer.len};
    mp_obj_t value = unpack(&in, DEPTH_MAX);
    if (in.left != 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("bytes behind the MessagePack"));
    }
    return value;
}
