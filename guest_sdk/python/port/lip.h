// The calls of the ABI, as docs/reference/abi.md has them, under names that C's library does not have.

#ifndef SYMPHONY_LIP_H
#define SYMPHONY_LIP_H

#include <stdint.h>

#define LIP(name) __attribute__((import_module("lip"), import_name(#name)))

#define LANGUAGE(name) __attribute__((import_module("language"), import_name(#name)))

LANGUAGE(source_read) int32_t language_source_read(void *ptr, int32_t cap);
LANGUAGE(fail) _Noreturn void language_fail(const void *ptr, int32_t len);

LIP(input_read) int32_t lip_input_read(void *ptr, int32_t cap);
LIP(send) int32_t lip_send(const void *ptr, int32_t len);
LIP(recv) int32_t lip_recv(void);
LIP(log) int32_t lip_log(int32_t level, const void *ptr, int32_t len);
LIP(exit) void lip_exit(int32_t code);
LIP(clock_ms) int64_t lip_clock_ms(void);
LIP(unix_ms) int64_t lip_unix_ms(void);
LIP(random) int32_t lip_random(void *ptr, int32_t len);
LIP(sleep) int32_t lip_sleep(int64_t ms);
LIP(spawn) int32_t lip_spawn(const void *ptr, int32_t len);
LIP(join) int32_t lip_join(int32_t pid);
LIP(channel_send) int32_t lip_channel_send(const void *name_ptr, int32_t name_len, const void *ptr, int32_t len);
LIP(channel_recv) int32_t lip_channel_recv(const void *name_ptr, int32_t name_len);
LIP(wait) int32_t lip_wait(const void *tickets_ptr, int32_t n, int64_t timeout_ms);
LIP(take) int32_t lip_take(int32_t ticket, void *ptr, int32_t cap);
LIP(claim) int32_t lip_claim(int32_t ticket, void *ptr, int32_t cap, int64_t timeout_ms);
LIP(cancel) int32_t lip_cancel(int32_t ticket);
LIP(last_error) int32_t lip_last_error(void *ptr, int32_t cap);
LIP(model_info) int32_t lip_model_info(void *ptr, int32_t cap);
LIP(tokenize) int32_t lip_tokenize(const void *ptr, int32_t len, void *out, int32_t cap);
LIP(detokenize) int32_t lip_detokenize(const void *tokens, int32_t n, void *out, int32_t cap);
LIP(chat) int32_t lip_chat(const void *ptr, int32_t len, void *out, int32_t cap);
LIP(chat_with) int32_t lip_chat_with(const void *ptr, int32_t len, void *out, int32_t cap);
LIP(pred) int32_t lip_pred(int32_t kv, const void *tokens, int32_t n, const void *positions, const void *opts, int32_t opts_len);
LIP(pred_claim) int32_t lip_pred_claim(int32_t kv, const void *tokens, int32_t n, const void *positions, const void *opts, int32_t opts_len, void *ptr, int32_t cap);
LIP(generate) int32_t lip_generate(int32_t kv, const void *tokens, int32_t n, const void *opts, int32_t opts_len);
LIP(constraint) int32_t lip_constraint(int32_t kind, const void *ptr, int32_t len);
LIP(constraint_close) int32_t lip_constraint_close(int32_t constraint);
LIP(kv_create) int32_t lip_kv_create(void);
LIP(kv_open) int32_t lip_kv_open(const void *path, int32_t path_len, int32_t rights);
LIP(kv_fork) int32_t lip_kv_fork(int32_t kv);
LIP(kv_extract) int32_t lip_kv_extract(int32_t kv, const void *ranges, int32_t n);
LIP(kv_append) int32_t lip_kv_append(int32_t kv, int32_t src, int32_t start, int32_t end);
LIP(kv_truncate) int32_t lip_kv_truncate(int32_t kv, int32_t len);
LIP(kv_len) int32_t lip_kv_len(int32_t kv);
LIP(kv_stat) int32_t lip_kv_stat(int32_t kv, void *ptr, int32_t cap);
LIP(kv_tokens) int32_t lip_kv_tokens(int32_t kv, int32_t start, int32_t n, void *out);
LIP(kv_save) int32_t lip_kv_save(int32_t kv, const void *path, int32_t path_len, int32_t flags);
LIP(kv_remove) int32_t lip_kv_remove(const void *path, int32_t path_len);
LIP(kv_list) int32_t lip_kv_list(const void *prefix, int32_t len, void *ptr, int32_t cap);
LIP(kv_list_after) int32_t lip_kv_list_after(const void *prefix, int32_t len, const void *after, int32_t after_len, int32_t max, void *ptr, int32_t cap);
LIP(kv_advise) int32_t lip_kv_advise(int32_t kv, int32_t hint, int64_t arg);
LIP(kv_grant) int32_t lip_kv_grant(int32_t kv, int32_t pid, int32_t rights, const void *name, int32_t name_len);
LIP(kv_granted) int32_t lip_kv_granted(const void *name, int32_t name_len);
LIP(kv_offer) int32_t lip_kv_offer(int32_t kv);
LIP(kv_match) int32_t lip_kv_match(const void *tokens, int32_t n);
LIP(kv_close) int32_t lip_kv_close(int32_t kv);
LIP(http) int32_t lip_http(const void *ptr, int32_t len);
LIP(tool) int32_t lip_tool(const void *ptr, int32_t len);
LIP(tools) int32_t lip_tools(void *ptr, int32_t cap);

#endif
