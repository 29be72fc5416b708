// The module `_lip`: the ABI's calls as functions of integers, bytes and lists. The frozen package
// `symphony` makes of them what a program uses.
//
// A call that fails raises what the function given to `set_error` makes of its name and errno.

#include <string.h>

#include "py/objint.h"
#include "py/objlist.h"
#include "py/runtime.h"
#include "lip.h"
#include "modlip.h"
#include "msgpack.h"

#define SMALL_BYTES (512) // of a result that needs no second call
#define EAGAIN_ (11)
#define ETIMEDOUT_ (110)

MP_REGISTER_ROOT_POINTER(mp_obj_t symphony_error);

// --- Arguments and results -------------------------------------------------------------------------

static NORETURN void fail(qstr call, int32_t result) {
    mp_obj_t make = MP_STATE_VM(symphony_error);
    mp_obj_t errno_obj = MP_OBJ_NEW_SMALL_INT(-result);
    if (make == MP_OBJ_NULL) {
        mp_raise_OSError(-result);
    }
    mp_obj_t error = mp_call_function_2(make, MP_OBJ_NEW_QSTR(call), errno_obj);
    if (!mp_obj_is_exception_instance(error)) {
        mp_raise_OSError(-result);
    }
    nlr_raise(error);
}

static int32_t checked(qstr call, int32_t result) {
    if (result < 0) {
        fail(call, result);
    }
    return result;
}

static mp_obj_t number(qstr call, int32_t result) {
    return mp_obj_new_int(checked(call, result));
}

static mp_obj_t nothing(qstr call, int32_t result) {
    checked(call, result);
    return mp_const_none;
}

static mp_buffer_info_t buffer(mp_obj_t value) {
    mp_buffer_info_t info;
    mp_get_buffer_raise(value, &info, MP_BUFFER_READ);
    return info;
}

// An integer of 32 bits, with or without a sign.
static int32_t word(mp_obj_t value) {
    if (mp_obj_is_small_int(value)) {
        return MP_OBJ_SMALL_INT_VALUE(value);
    }
    return (int32_t)mp_obj_get_int_truncated(value);
}

// An integer of 64 bits.
static int64_t wide(mp_obj_t value) {
    if (mp_obj_is_small_int(value)) {
        return MP_OBJ_SMALL_INT_VALUE(value);
    } else if (!mp_obj_is_type(value, &mp_type_int)) {
        return mp_obj_get_int(value);
    }
    byte bytes[8];
    int64_t number;
    mp_obj_int_to_bytes_impl(value, false, sizeof(bytes), bytes);
    memcpy(&number, bytes, sizeof(number));
    return number;
}

static uint32_t token(mp_obj_t value) {
    if (mp_obj_is_small_int(value) && MP_OBJ_SMALL_INT_VALUE(value) >= 0) {
        return (uint32_t)MP_OBJ_SMALL_INT_VALUE(value);
    }
    mp_int_t number = mp_obj_get_int(value);
    if (number < 0) {
        mp_raise_msg(&mp_type_OverflowError, MP_ERROR_TEXT("a negative token"));
    }
    return (uint32_t)number;
}

typedef struct {
    uint32_t *at;
    size_t count;
} words_t;

// A list or tuple of numbers as u32; None is none.
static words_t words(mp_obj_t list) {
    words_t words = {NULL, 0};
    mp_obj_t *items;
    if (list == mp_const_none) {
        return words;
    }
    mp_obj_get_array(list, &words.count, &items);
    words.at = m_new(uint32_t, words.count + 1);
    for (size_t i = 0; i < words.count; ++i) {
        words.at[i] = token(items[i]);
    }
    return words;
}

static void free_words(words_t words) {
    if (words.at != NULL) {
        m_del(uint32_t, words.at, words.count + 1);
    }
}

static mp_obj_t list_of_words(const uint32_t *words, size_t count) {
    mp_obj_t list = mp_obj_new_list(count, NULL);
    mp_obj_list_t *items = MP_OBJ_TO_PTR(list);
    for (size_t i = 0; i < count; ++i) {
        items->items[i] = mp_const_none;
    }
    for (size_t i = 0; i < count; ++i) {
        items->items[i] = mp_obj_new_int_from_uint(words[i]);
    }
    return list;
}

// The bytes that `CALL`, with `ptr` and `cap`, writes; they may be more with each call.
#define FILL(call, CALL) \
    byte small[SMALL_BYTES]; \
    byte *ptr = small; \
    int32_t cap = SMALL_BYTES; \
    int32_t len = checked(call, CALL); \
    while (len > cap) { \
        cap = len; \
        ptr = m_new(byte, cap); \
        len = checked(call, CALL); \
    } \

#define FILLED(call, CALL) do { \
        FILL(call, CALL) \
        return mp_obj_new_bytes(ptr, len); \
} while (0)

// The same for tokens, which `cap` and the result count.
#define FILLED_WORDS(call, first, CALL) do { \
        int32_t cap = (int32_t)(first); \
        uint32_t *out = m_new(uint32_t, cap + 1); \
        int32_t len = checked(call, CALL); \
        while (len > cap) { \
            cap = len; \
            out = m_new(uint32_t, cap + 1); \
            len = checked(call, CALL); \
        } \
        mp_obj_t list = list_of_words(out, len); \
        m_del(uint32_t, out, cap + 1); \
        return list; \
} while (0)

#define NAME(name) MP_QSTR_##name
#define FUN_0(name) static MP_DEFINE_CONST_FUN_OBJ_0(name##_obj, name)
#define FUN_1(name) static MP_DEFINE_CONST_FUN_OBJ_1(name##_obj, name)
#define FUN_2(name) static MP_DEFINE_CONST_FUN_OBJ_2(name##_obj, name)
#define FUN_3(name) static MP_DEFINE_CONST_FUN_OBJ_3(name##_obj, name)
#define FUN_N(name, n) static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(name##_obj, n, n, name)

// --- The process -----------------------------------------------------------------------------------

static mp_obj_t set_error(mp_obj_t make) {
    MP_STATE_VM(symphony_error) = make;
    return mp_const_none;
}
FUN_1(set_error);

static mp_obj_t input_read(void) {
    FILLED(NAME(input_read), lip_input_read(ptr, cap));
}
FUN_0(input_read);

static mp_obj_t source_read(void) {
    FILLED(NAME(source_read), language_source_read(ptr, cap));
}
FUN_0(source_read);

static mp_obj_t send(mp_obj_t message) {
    mp_buffer_info_t bytes = buffer(message);
    return nothing(NAME(send), lip_send(bytes.buf, bytes.len));
}
FUN_1(send);

static mp_obj_t recv(void) {
    return number(NAME(recv), lip_recv());
}
FUN_0(recv);

// A log that is full drops the line: no caller is told.
static mp_obj_t log_(mp_obj_t level, mp_obj_t line) {
    mp_buffer_info_t bytes = buffer(line);
    lip_log(word(level), bytes.buf, bytes.len);
    return mp_const_none;
}
FUN_2(log_);

static mp_obj_t exit_(mp_obj_t code) {
    symphony_flush();
    lip_exit(word(code));
    return mp_const_none;
}
FUN_1(exit_);

static mp_obj_t clock_ms(void) {
    return mp_obj_new_int_from_ll(lip_clock_ms());
}
FUN_0(clock_ms);

static mp_obj_t unix_ms(void) {
    return mp_obj_new_int_from_ll(lip_unix_ms());
}
FUN_0(unix_ms);

static mp_obj_t random_(mp_obj_t count) {
    vstr_t bytes;
    mp_int_t size = mp_obj_get_int(count);
    if (size < 0 || size > 65536) {
        mp_raise_ValueError(MP_ERROR_TEXT("0 to 65536 random bytes"));
    }
    vstr_init_len(&bytes, size);
    checked(NAME(random), lip_random(bytes.buf, bytes.len));
    return mp_obj_new_bytes_from_vstr(&bytes);
}
FUN_1(random_);

static mp_obj_t sleep_(mp_obj_t ms) {
    return number(NAME(sleep), lip_sleep(wide(ms)));
}
FUN_1(sleep_);

static mp_obj_t spawn(mp_obj_t request) {
    mp_buffer_info_t bytes = buffer(request);
    return number(NAME(spawn), lip_spawn(bytes.buf, bytes.len));
}
FUN_1(spawn);

static mp_obj_t join(mp_obj_t pid) {
    return number(NAME(join), lip_join(word(pid)));
}
FUN_1(join);

static mp_obj_t channel_send(mp_obj_t name, mp_obj_t item) {
    mp_buffer_info_t path = buffer(name), bytes = buffer(item);
    return nothing(NAME(channel_send), lip_channel_send(path.buf, path.len, bytes.buf, bytes.len));
}
FUN_2(channel_send);

static mp_obj_t channel_recv(mp_obj_t name) {
    mp_buffer_info_t path = buffer(name);
    return number(NAME(channel_recv), lip_channel_recv(path.buf, path.len));
}
FUN_1(channel_recv);

// --- Tickets ---------------------------------------------------------------------------------------

// The result of a ticket: bytes, its errno as a negative number, or None where it is not ready.
static mp_obj_t taken(int32_t ticket) {
    byte small[SMALL_BYTES];
    byte *ptr = small;
    int32_t cap = SMALL_BYTES;
    int32_t len = lip_take(ticket, ptr, cap);
    while (len > cap) {
        cap = len;
        ptr = m_new(byte, cap);
        len = lip_take(ticket, ptr, cap);
    }
    if (len == -EAGAIN_) {
        return mp_const_none;
    }
    return len < 0 ? MP_OBJ_NEW_SMALL_INT(len) : mp_obj_new_bytes(ptr, len);
}

static mp_obj_t take(mp_obj_t ticket) {
    return taken(word(ticket));
}
FUN_1(take);

// Waits until one of the tickets is ready, for at most so many milliseconds (-1: for ever). Returns what
// `take` gives for each of them, which is None for those that are not ready.
static mp_obj_t wait_(mp_obj_t tickets, mp_obj_t timeout_ms) {
    words_t all = words(tickets);
    int32_t ready = lip_wait(all.at, all.count, wide(timeout_ms));
    if (ready < 0 && ready != -ETIMEDOUT_) {
        fail(NAME(wait), ready);
    }
    mp_obj_t list = mp_obj_new_list(0, NULL);
    for (size_t i = 0; i < all.count; ++i) {
        mp_obj_list_append(list, ready < 0 ? mp_const_none : taken(all.at[i]));
    }
    free_words(all);
    return list;
}
FUN_2(wait_);

static mp_obj_t cancel(mp_obj_t ticket) {
    lip_cancel(word(ticket)); // one that is not there any more needs no error
    return mp_const_none;
}
FUN_1(cancel);

static mp_obj_t last_error(void) {
    byte text[1024];
    int32_t len = lip_last_error(text, sizeof(text));
    return len > 0 && len <= (int32_t)sizeof(text) ? mp_obj_new_str((const char *)text, len) : MP_OBJ_NEW_QSTR(MP_QSTR_);
}
FUN_0(last_error);

// --- The model -------------------------------------------------------------------------------------

static mp_obj_t model_info(void) {
    FILLED(NAME(model_info), lip_model_info(ptr, cap));
}
FUN_0(model_info);

static mp_obj_t tokenize(mp_obj_t text) {
    mp_buffer_info_t bytes = buffer(text);
    FILLED_WORDS(NAME(tokenize), bytes.len / 2 + 16, lip_tokenize(bytes.buf, bytes.len, out, cap));
}
FUN_1(tokenize);

static mp_obj_t detokenize(mp_obj_t tokens) {
    words_t all = words(tokens);
    FILL(NAME(detokenize), lip_detokenize(all.at, all.count, ptr, cap))
    free_words(all);
    return mp_obj_new_bytes(ptr, len);
}
FUN_1(detokenize);

static mp_obj_t chat(mp_obj_t messages) {
    mp_buffer_info_t bytes = buffer(messages);
    FILLED_WORDS(NAME(chat), bytes.len / 2 + 64, lip_chat(bytes.buf, bytes.len, out, cap));
}
FUN_1(chat);

static mp_obj_t chat_with(mp_obj_t conversation) {
    mp_buffer_info_t bytes = buffer(conversation);
    FILLED_WORDS(NAME(chat_with), bytes.len / 2 + 64, lip_chat_with(bytes.buf, bytes.len, out, cap));
}
FUN_1(chat_with);

static mp_obj_t pred(size_t n_args, const mp_obj_t *args) {
    words_t tokens = words(args[1]), positions = words(args[2]);
    mp_buffer_info_t opts = buffer(args[3]);
    if (positions.at != NULL && positions.count != tokens.count) {
        mp_raise_ValueError(MP_ERROR_TEXT("as many positions as tokens"));
    }
    int32_t ticket = lip_pred(word(args[0]), tokens.at, tokens.count, positions.at, opts.buf, opts.len);
    free_words(tokens);
    free_words(positions);
    return number(NAME(pred), ticket);
}
FUN_N(pred, 4);

static mp_obj_t generate(mp_obj_t kv, mp_obj_t tokens, mp_obj_t options) {
    words_t all = words(tokens);
    mp_buffer_info_t opts = buffer(options);
    int32_t ticket = lip_generate(word(kv), all.at, all.count, opts.buf, opts.len);
    free_words(all);
    return number(NAME(generate), ticket);
}
FUN_3(generate);

static mp_obj_t constraint(mp_obj_t kind, mp_obj_t text) {
    mp_buffer_info_t bytes = buffer(text);
    return number(NAME(constraint), lip_constraint(word(kind), bytes.buf, bytes.len));
}
FUN_2(constraint);

static mp_obj_t constraint_close(mp_obj_t handle) {
    lip_constraint_close(word(handle));
    return mp_const_none;
}
FUN_1(constraint_close);

// --- KV files --------------------------------------------------------------------------------------

static mp_obj_t kv_create(void) {
    return number(NAME(kv_create), lip_kv_create());
}
FUN_0(kv_create);

static mp_obj_t kv_open(mp_obj_t path, mp_obj_t rights) {
    mp_buffer_info_t bytes = buffer(path);
    return number(NAME(kv_open), lip_kv_open(bytes.buf, bytes.len, word(rights)));
}
FUN_2(kv_open);

static mp_obj_t kv_fork(mp_obj_t kv) {
    return number(NAME(kv_fork), lip_kv_fork(word(kv)));
}
FUN_1(kv_fork);

// The ranges are a flat list of starts and ends.
static mp_obj_t kv_extract(mp_obj_t kv, mp_obj_t ranges) {
    words_t all = words(ranges);
    int32_t handle = lip_kv_extract(word(kv), all.at, all.count / 2);
    free_words(all);
    return number(NAME(kv_extract), handle);
}
FUN_2(kv_extract);

static mp_obj_t kv_append(size_t n_args, const mp_obj_t *args) {
    int32_t result = lip_kv_append(word(args[0]), word(args[1]), token(args[2]), token(args[3]));
    return nothing(NAME(kv_append), result);
}
FUN_N(kv_append, 4);

static mp_obj_t kv_truncate(mp_obj_t kv, mp_obj_t len) {
    return nothing(NAME(kv_truncate), lip_kv_truncate(word(kv), token(len)));
}
FUN_2(kv_truncate);

static mp_obj_t kv_len(mp_obj_t kv) {
    return number(NAME(kv_len), lip_kv_len(word(kv)));
}
FUN_1(kv_len);

static mp_obj_t kv_stat(mp_obj_t kv) {
    FILLED(NAME(kv_stat), lip_kv_stat(word(kv), ptr, cap));
}
FUN_1(kv_stat);

static mp_obj_t kv_tokens(mp_obj_t kv, mp_obj_t start, mp_obj_t count) {
    uint32_t n = token(count);
    if (n > 1 << 24) {
        mp_raise_ValueError(MP_ERROR_TEXT("too many tokens"));
    }
    uint32_t *out = m_new(uint32_t, n + 1);
    checked(NAME(kv_tokens), lip_kv_tokens(word(kv), token(start), n, out));
    mp_obj_t list = list_of_words(out, n);
    m_del(uint32_t, out, n + 1);
    return list;
}
FUN_3(kv_tokens);

static mp_obj_t kv_save(mp_obj_t kv, mp_obj_t path, mp_obj_t flags) {
    mp_buffer_info_t bytes = buffer(path);
    return nothing(NAME(kv_save), lip_kv_save(word(kv), bytes.buf, bytes.len, word(flags)));
}
FUN_3(kv_save);

static mp_obj_t kv_remove(mp_obj_t path) {
    mp_buffer_info_t bytes = buffer(path);
    return nothing(NAME(kv_remove), lip_kv_remove(bytes.buf, bytes.len));
}
FUN_1(kv_remove);

static mp_obj_t kv_list(mp_obj_t prefix) {
    mp_buffer_info_t bytes = buffer(prefix);
    FILLED(NAME(kv_list), lip_kv_list(bytes.buf, bytes.len, ptr, cap));
}
FUN_1(kv_list);

static mp_obj_t kv_list_after(mp_obj_t prefix, mp_obj_t after, mp_obj_t max) {
    mp_buffer_info_t bytes = buffer(prefix), last = buffer(after);
    FILLED(NAME(kv_list_after), lip_kv_list_after(bytes.buf, bytes.len, last.buf, last.len, word(max), ptr, cap));
}
FUN_3(kv_list_after);

static mp_obj_t kv_advise(mp_obj_t kv, mp_obj_t hint, mp_obj_t arg) {
    return nothing(NAME(kv_advise), lip_kv_advise(word(kv), word(hint), wide(arg)));
}
FUN_3(kv_advise);

static mp_obj_t kv_grant(size_t n_args, const mp_obj_t *args) {
    mp_buffer_info_t name = buffer(args[3]);
    return nothing(NAME(kv_grant), lip_kv_grant(word(args[0]), word(args[1]), word(args[2]), name.buf, name.len));
}
FUN_N(kv_grant, 4);

static mp_obj_t kv_granted(mp_obj_t name) {
    mp_buffer_info_t bytes = buffer(name);
    return number(NAME(kv_granted), lip_kv_granted(bytes.buf, bytes.len));
}
FUN_1(kv_granted);

static mp_obj_t kv_offer(mp_obj_t kv) {
    return number(NAME(kv_offer), lip_kv_offer(word(kv)));
}
FUN_1(kv_offer);

static mp_obj_t kv_match(mp_obj_t tokens) {
    words_t all = words(tokens);
    int32_t handle = lip_kv_match(all.at, all.count);
    free_words(all);
    return number(NAME(kv_match), handle);
}
FUN_1(kv_match);

static mp_obj_t kv_close(mp_obj_t kv) {
    lip_kv_close(word(kv)); // finalisers call it: it does not raise
    return mp_const_none;
}
FUN_1(kv_close);

// --- The outside -----------------------------------------------------------------------------------

static mp_obj_t http(mp_obj_t request) {
    mp_buffer_info_t bytes = buffer(request);
    return number(NAME(http), lip_http(bytes.buf, bytes.len));
}
FUN_1(http);

static mp_obj_t tool(mp_obj_t request) {
    mp_buffer_info_t bytes = buffer(request);
    return number(NAME(tool), lip_tool(bytes.buf, bytes.len));
}
FUN_1(tool);

static mp_obj_t tools(void) {
    FILLED(NAME(tools), lip_tools(ptr, cap));
}
FUN_0(tools);

// --- Numbers as bytes ------------------------------------------------------------------------------

static mp_obj_t pack(mp_obj_t value) {
    return symphony_pack(value, false);
}
FUN_1(pack);

static mp_obj_t options(mp_obj_t value) {
    return symphony_pack(value, true);
}
FUN_1(options);
static MP_DEFINE_CONST_FUN_OBJ_1(unpack_obj, symphony_unpack);

// (token, log-probability) of each 8 bytes.
static mp_obj_t choices(mp_obj_t packed) {
    mp_buffer_info_t bytes = buffer(packed);
    mp_obj_t list = mp_obj_new_list(0, NULL);
    for (size_t at = 0; at + 8 <= bytes.len; at += 8) {
        uint32_t token;
        float logprob;
        memcpy(&token, (byte *)bytes.buf + at, 4);
        memcpy(&logprob, (byte *)bytes.buf + at + 4, 4);
        mp_obj_t pair[2] = {mp_obj_new_int_from_uint(token), mp_obj_new_float((double)logprob)};
        mp_obj_list_append(list, mp_obj_new_tuple(2, pair));
    }
    return list;
}
FUN_1(choices);

#define CALL(name) {MP_ROM_QSTR(MP_QSTR_##name), MP_ROM_PTR(&name##_obj)}
#define CALL_(name) {MP_ROM_QSTR(MP_QSTR_##name), MP_ROM_PTR(&name##__obj)}

static const mp_rom_map_elem_t lip_globals_table[] = {
    {MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR__lip)},
    CALL(set_error), CALL(source_read), CALL(input_read), CALL(send), CALL(recv), CALL_(log), CALL_(exit), CALL(clock_ms),
    CALL(unix_ms), CALL_(random), CALL_(sleep), CALL(spawn), CALL(join), CALL(channel_send),
    CALL(channel_recv), CALL(take), CALL_(wait), CALL(cancel), CALL(last_error), CALL(model_info),
    CALL(tokenize), CALL(detokenize), CALL(chat), CALL(chat_with), CALL(pred), CALL(generate),
    CALL(constraint), CALL(constraint_close), CALL(kv_create), CALL(kv_open), CALL(kv_fork),
    CALL(kv_extract), CALL(kv_append), CALL(kv_truncate), CALL(kv_len), CALL(kv_stat), CALL(kv_tokens),
    CALL(kv_save), CALL(kv_remove), CALL(kv_list), CALL(kv_list_after), CALL(kv_advise), CALL(kv_grant),
    CALL(kv_granted), CALL(kv_offer), CALL(kv_match), CALL(kv_close), CALL(http), CALL(tool), CALL(tools),
    CALL(pack), CALL(options), CALL(unpack), CALL(choices),
};
static MP_DEFINE_CONST_DICT(lip_globals, lip_globals_table);

const mp_obj_module_t mp_module_lip = {
    .base = {&mp_type_module},
    .globals = (mp_obj_dict_t *)&lip_globals,
};

MP_REGISTER_MODULE(MP_QSTR__lip, mp_module_lip);
