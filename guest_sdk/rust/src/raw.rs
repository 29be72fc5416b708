//! The calls of the LIP ABI, as they are imported from module `lip`.
//!
//! One declaration a call, compared with the ABI's table by a test. Everything above this file is
//! safe; prefer it. Where the crate is compiled for another machine than Wasm, the same functions
//! belong to [`crate::testing`], so that a program's tests run natively.

#[cfg(not(target_arch = "wasm32"))]
pub use crate::testing::calls::*;

#[cfg(target_arch = "wasm32")]
pub use imports::*;

#[cfg(target_arch = "wasm32")]
#[rustfmt::skip]
mod imports {
    #[link(wasm_import_module = "lip")]
    extern "C" {
        // Process and tickets.
        /// The run's input bytes; returns their length, and writes them when it is at most `cap`.
        pub fn input_read(ptr: *mut u8, cap: usize) -> i32;
        /// Suspends: one message to the user of the run.
        pub fn send(ptr: *const u8, len: usize) -> i32;
        /// Ticket: the next message from the user; EPIPE when the user has closed.
        pub fn recv() -> i32;
        /// A line kept with the run; level 0 debug, 1 info, 2 warning, 3 error.
        pub fn log(level: i32, ptr: *const u8, len: usize) -> i32;
        /// Ends the program with this exit code.
        pub fn exit(code: i32);
        /// Milliseconds since the program started.
        pub fn clock_ms() -> i64;
        /// Milliseconds since 1970.
        pub fn unix_ms() -> i64;
        /// Fills memory with random bytes.
        pub fn random(ptr: *mut u8, len: usize) -> i32;
        /// Ticket: ready after this many milliseconds.
        pub fn sleep(ms: i64) -> i32;
        /// Ticket: msgpack {program?, entry?, input, grants} -> u32 pid.
        pub fn spawn(ptr: *const u8, len: usize) -> i32;
        /// Ticket: msgpack {code, output} once the child has ended.
        pub fn join(pid: i32) -> i32;
        /// Suspends: puts an item into a named queue.
        pub fn channel_send(name_ptr: *const u8, name_len: usize, ptr: *const u8, len: usize) -> i32;
        /// Ticket: the next item of a named queue.
        pub fn channel_recv(name_ptr: *const u8, name_len: usize) -> i32;
        /// Suspends: the index of a ready ticket, or ETIMEDOUT; a timeout of -1 waits for ever.
        pub fn wait(tickets_ptr: *const i32, n: usize, timeout_ms: i64) -> i32;
        /// The result's length, or the work's error; frees the ticket when it fitted.
        pub fn take(ticket: i32, ptr: *mut u8, cap: usize) -> i32;
        /// Suspends: `wait` for one ticket and `take` it, in one call; ETIMEDOUT.
        pub fn claim(ticket: i32, ptr: *mut u8, cap: usize, timeout_ms: i64) -> i32;
        /// Drops the work, or its result, and frees the ticket.
        pub fn cancel(ticket: i32) -> i32;
        /// What was wrong, in words, with the last call that failed and has any.
        pub fn last_error(ptr: *mut u8, cap: usize) -> i32;

        // Model.
        /// msgpack {name, vocab_size, eos, bos, max_context, page_size, dtype}.
        pub fn model_info(ptr: *mut u8, cap: usize) -> i32;
        /// Suspends: writes u32 tokens and returns their number.
        pub fn tokenize(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32;
        /// Suspends: the tokens' raw bytes.
        pub fn detokenize(tokens: *const u32, n: usize, out: *mut u8, cap: usize) -> i32;
        /// msgpack messages through the model's chat template -> u32 tokens.
        pub fn chat(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32;
        /// msgpack {messages, tools?, variables?, ..} through the model's chat template -> u32 tokens.
        pub fn chat_with(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32;
        /// Ticket: one forward pass.
        pub fn pred(kv: i32, tokens: *const u32, n: usize, positions: *const u32, opts: *const u8, opts_len: usize) -> i32;
        /// Suspends: `pred` and `claim` of its ticket; where the result is longer than `cap`, its length.
        pub fn pred_claim(
            kv: i32,
            tokens: *const u32,
            n: usize,
            positions: *const u32,
            opts: *const u8,
            opts_len: usize,
            ptr: *mut u8,
            cap: usize,
        ) -> i32;
        /// Ticket: run-ahead decoding; each `take` gives the tokens that are ready, nothing at the end.
        pub fn generate(kv: i32, tokens: *const u32, n: usize, opts: *const u8, opts_len: usize) -> i32;
        /// Suspends: compiles a JSON schema (0), regex (1) or Lark grammar (2).
        pub fn constraint(kind: i32, ptr: *const u8, len: usize) -> i32;
        /// Closes a constraint's handle.
        pub fn constraint_close(constraint: i32) -> i32;

        // KV files.
        /// An empty, anonymous file with all rights.
        pub fn kv_create() -> i32;
        /// Suspends: a private copy-on-write view of a named file.
        pub fn kv_open(path: *const u8, path_len: usize, rights: i32) -> i32;
        /// A copy that shares pages until either side writes.
        pub fn kv_fork(kv: i32) -> i32;
        /// A new file of the entries in n (start, end) pairs, positions kept.
        pub fn kv_extract(kv: i32, ranges: *const u32, n: usize) -> i32;
        /// Entries of another file at the end of this one.
        pub fn kv_append(kv: i32, src: i32, start: u32, end: u32) -> i32;
        /// Rolls back to `len` entries.
        pub fn kv_truncate(kv: i32, len: u32) -> i32;
        /// Suspends: the number of entries.
        pub fn kv_len(kv: i32) -> i32;
        /// Suspends: msgpack {len, pages, shared, tier, rights, path, expires_ms}.
        pub fn kv_stat(kv: i32, ptr: *mut u8, cap: usize) -> i32;
        /// Suspends: writes n tokens from entry `start`.
        pub fn kv_tokens(kv: i32, start: u32, n: usize, out: *mut u32) -> i32;
        /// Suspends: names the file. Flags: 1 replace, 2 durable, 4 public.
        pub fn kv_save(kv: i32, path: *const u8, path_len: usize, flags: i32) -> i32;
        /// Suspends: the name goes; open handles stay valid.
        pub fn kv_remove(path: *const u8, path_len: usize) -> i32;
        /// Suspends: msgpack list of {path, len, pages, tier, durable, public, expires_ms}.
        pub fn kv_list(prefix: *const u8, len: usize, ptr: *mut u8, cap: usize) -> i32;
        /// Suspends: as kv_list, at most `max` of them, from the first behind the path `after`.
        pub fn kv_list_after(
            prefix: *const u8,
            len: usize,
            after: *const u8,
            after_len: usize,
            max: usize,
            ptr: *mut u8,
            cap: usize,
        ) -> i32;
        /// A budgeted wish about where the file's pages live.
        pub fn kv_advise(kv: i32, hint: i32, arg: i64) -> i32;
        /// Gives a child or the parent (pid 0) a handle with at most these rights.
        pub fn kv_grant(kv: i32, pid: i32, rights: i32, name: *const u8, name_len: usize) -> i32;
        /// The handle granted to this instance under that name, or ENOENT.
        pub fn kv_granted(name: *const u8, name_len: usize) -> i32;
        /// Suspends: offers the file's whole pages to the tenant's prefix cache.
        pub fn kv_offer(kv: i32) -> i32;
        /// Suspends: a new file of the longest offered prefix of these tokens, or ENOENT.
        pub fn kv_match(tokens: *const u32, n: usize) -> i32;
        /// Closes the handle.
        pub fn kv_close(kv: i32) -> i32;

        // The outside.
        /// Ticket: msgpack {method, url, headers, body, timeout_ms} -> {status, headers, body}.
        pub fn http(ptr: *const u8, len: usize) -> i32;
        /// Ticket: msgpack {name, arguments} -> {ok, content}.
        pub fn tool(ptr: *const u8, len: usize) -> i32;
        /// msgpack list of {name, description, schema}.
        pub fn tools(ptr: *mut u8, cap: usize) -> i32;
    }
}
