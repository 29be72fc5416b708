/* The calls that the module imports. The native build for sanitizers has the same, of tests. */
#include <stdint.h>

#ifdef __wasm__
#define CALL(module, name) __attribute__((import_module(module), import_name(#name)))
#else
#define CALL(module, name)
#endif

typedef intptr_t word; /* a pointer, or an i32 of the ABI */

#define LIP(name, ...) extern int32_t lip_##name(__VA_ARGS__) CALL("lip", name);
#define W word

LIP(input_read, W, W) LIP(send, W, W) LIP(recv, void) LIP(log, W, W, W) LIP(random, W, W)
LIP(sleep, int64_t) LIP(spawn, W, W) LIP(join, W) LIP(channel_send, W, W, W, W)
LIP(channel_recv, W, W) LIP(wait, W, W, int64_t) LIP(take, W, W, W)
LIP(claim, W, W, W, int64_t) LIP(cancel, W) LIP(last_error, W, W)
LIP(model_info, W, W) LIP(tokenize, W, W, W, W) LIP(detokenize, W, W, W, W)
LIP(chat, W, W, W, W) LIP(chat_with, W, W, W, W) LIP(pred, W, W, W, W, W, W)
LIP(generate, W, W, W, W, W) LIP(constraint, W, W, W) LIP(constraint_close, W)
LIP(kv_create, void) LIP(kv_open, W, W, W) LIP(kv_fork, W) LIP(kv_extract, W, W, W)
LIP(kv_append, W, W, W, W) LIP(kv_truncate, W, W) LIP(kv_len, W) LIP(kv_stat, W, W, W)
LIP(kv_tokens, W, W, W, W) LIP(kv_save, W, W, W, W) LIP(kv_remove, W, W)
LIP(kv_list_after, W, W, W, W, W, W, W) LIP(kv_advise, W, W, int64_t)
LIP(kv_grant, W, W, W, W, W) LIP(kv_granted, W, W) LIP(kv_offer, W) LIP(kv_match, W, W)
LIP(kv_close, W) LIP(http, W, W) LIP(tool, W, W) LIP(tools, W, W)
extern void lip_exit(W) CALL("lip", exit);
extern int64_t lip_clock_ms(void) CALL("lip", clock_ms);
extern int64_t lip_unix_ms(void) CALL("lip", unix_ms);
extern int32_t language_source_read(W, W) CALL("language", source_read);
extern void language_fail(W, W) CALL("language", fail);
#undef W
