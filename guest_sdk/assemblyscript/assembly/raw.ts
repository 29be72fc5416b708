// The calls of the LIP ABI, version 1, just as `runtime/symphony_runtime/abi/table.toml` has them;
// a test compares each name, parameter and result. Pointers are `usize`, lengths, counts and flags
// `u32`. A result below zero is minus an `Errno`. Programs use the typed modules beside this one.

// --- Process and tickets -------------------------------------------------------------------------

/** The run's input bytes; returns their length, and writes them when it is at most `cap`. */
// @ts-ignore: decorator
@external("lip", "input_read")
export declare function input_read(ptr: usize, cap: u32): i32;

/** One message to the user of the run, in order. Past the run's output limit the run is killed. */
// @ts-ignore: decorator
@external("lip", "send")
export declare function send(ptr: usize, len: u32): i32;

/** The next message from the user; EPIPE when the user has closed. */
// @ts-ignore: decorator
@external("lip", "recv")
export declare function recv(): i32;

/** A line kept with the run; level 0 debug, 1 info, 2 warning, 3 error. */
// @ts-ignore: decorator
@external("lip", "log")
export declare function log(level: u32, ptr: usize, len: u32): i32;

/** Ends the program with this exit code. */
// @ts-ignore: decorator
@external("lip", "exit")
export declare function exit(code: i32): void;

/** Milliseconds since the program started. */
// @ts-ignore: decorator
@external("lip", "clock_ms")
export declare function clock_ms(): i64;

/** Milliseconds since 1970. */
// @ts-ignore: decorator
@external("lip", "unix_ms")
export declare function unix_ms(): i64;

/** Fills memory with random bytes. */
// @ts-ignore: decorator
@external("lip", "random")
export declare function random(ptr: usize, len: u32): i32;

/** Ready after this many milliseconds; the result is empty. */
// @ts-ignore: decorator
@external("lip", "sleep")
export declare function sleep(ms: i64): i32;

/** msgpack {program?, entry?, input, grants: [{handle, rights, name}]} -> u32 pid. */
// @ts-ignore: decorator
@external("lip", "spawn")
export declare function spawn(ptr: usize, len: u32): i32;

/** msgpack {code, output} once the child has ended. */
// @ts-ignore: decorator
@external("lip", "join")
export declare function join(pid: i32): i32;

/** Puts an item into a tenant's named queue; EAGAIN when it stayed full. */
// @ts-ignore: decorator
@external("lip", "channel_send")
export declare function channel_send(name_ptr: usize, name_len: u32, ptr: usize, len: u32): i32;

/** The next item of a tenant's named queue. */
// @ts-ignore: decorator
@external("lip", "channel_recv")
export declare function channel_recv(name_ptr: usize, name_len: u32): i32;

/** The index of a ready ticket, or ETIMEDOUT; a timeout of -1 waits for ever. */
// @ts-ignore: decorator
@external("lip", "wait")
export declare function wait(tickets_ptr: usize, n: u32, timeout_ms: i64): i32;

/**
 * The result's length, or the work's error; frees the ticket when it fitted; EAGAIN when not
 * ready.
 */
// @ts-ignore: decorator
@external("lip", "take")
export declare function take(ticket: i32, ptr: usize, cap: u32): i32;

/** `wait` for one ticket and `take` it, in one call; ETIMEDOUT. */
// @ts-ignore: decorator
@external("lip", "claim")
export declare function claim(ticket: i32, ptr: usize, cap: u32, timeout_ms: i64): i32;

/** Drops the work, or its result, and frees the ticket. */
// @ts-ignore: decorator
@external("lip", "cancel")
export declare function cancel(ticket: i32): i32;

/** What was wrong, in words, with the last call that failed and has any. */
// @ts-ignore: decorator
@external("lip", "last_error")
export declare function last_error(ptr: usize, cap: u32): i32;

// --- Model ---------------------------------------------------------------------------------------

/** msgpack {name, vocab_size, eos, bos, max_context, page_size, dtype}. */
// @ts-ignore: decorator
@external("lip", "model_info")
export declare function model_info(ptr: usize, cap: u32): i32;

/**
 * Writes u32 tokens and returns their number; `cap` counts tokens. Spellings of special tokens
 * stay text.
 */
// @ts-ignore: decorator
@external("lip", "tokenize")
export declare function tokenize(ptr: usize, len: u32, out: usize, cap: u32): i32;

/** The tokens' raw bytes; an id without text gives none. */
// @ts-ignore: decorator
@external("lip", "detokenize")
export declare function detokenize(tokens: usize, n: u32, out: usize, cap: u32): i32;

/** msgpack messages through the model's chat template -> u32 tokens; `cap` counts tokens. */
// @ts-ignore: decorator
@external("lip", "chat")
export declare function chat(ptr: usize, len: u32, out: usize, cap: u32): i32;

/**
 * msgpack {messages, tools?, variables?, add_generation_prompt?, continue_final_message?} through
 * the model's chat template -> u32 tokens; `cap` counts tokens.
 */
// @ts-ignore: decorator
@external("lip", "chat_with")
export declare function chat_with(ptr: usize, len: u32, out: usize, cap: u32): i32;

/** One forward pass: appends n tokens to the file and gives the distributions asked for. */
// @ts-ignore: decorator
@external("lip", "pred")
export declare function pred(
  kv: i32,
  tokens: usize,
  n: u32,
  positions: usize,
  opts: usize,
  opts_len: u32,
): i32;

/** `pred` and `claim` of its ticket, in one call; a result longer than cap does not begin. */
// @ts-ignore: decorator
@external("lip", "pred_claim")
export declare function pred_claim(
  kv: i32,
  tokens: usize,
  n: u32,
  positions: usize,
  opts: usize,
  opts_len: u32,
  ptr: usize,
  cap: u32,
): i32;

/** Run-ahead decoding. */
// @ts-ignore: decorator
@external("lip", "generate")
export declare function generate(kv: i32, tokens: usize, n: u32, opts: usize, opts_len: u32): i32;

/** Compiles a JSON schema (0), regex (1) or Lark grammar (2). */
// @ts-ignore: decorator
@external("lip", "constraint")
export declare function constraint(kind: i32, ptr: usize, len: u32): i32;

/** Closes the handle; generations that use it go on. */
// @ts-ignore: decorator
@external("lip", "constraint_close")
export declare function constraint_close(constraint: i32): i32;

// --- KV files ------------------------------------------------------------------------------------

/** An empty, anonymous file with all rights. */
// @ts-ignore: decorator
@external("lip", "kv_create")
export declare function kv_create(): i32;

/** A private copy-on-write view of a named file. */
// @ts-ignore: decorator
@external("lip", "kv_open")
export declare function kv_open(path: usize, path_len: u32, rights: u32): i32;

/** A copy that shares pages until either side writes; needs R. */
// @ts-ignore: decorator
@external("lip", "kv_fork")
export declare function kv_fork(kv: i32): i32;

/** A new file of the entries in n (start, end) u32 pairs, positions kept; needs R. */
// @ts-ignore: decorator
@external("lip", "kv_extract")
export declare function kv_extract(kv: i32, ranges: usize, n: u32): i32;

/** Entries of another file at the end of this one; needs A, and R on the source. */
// @ts-ignore: decorator
@external("lip", "kv_append")
export declare function kv_append(kv: i32, src: i32, start: u32, end: u32): i32;

/** Rolls back to `len` entries; needs T. */
// @ts-ignore: decorator
@external("lip", "kv_truncate")
export declare function kv_truncate(kv: i32, len: u32): i32;

/** The number of entries; needs R. */
// @ts-ignore: decorator
@external("lip", "kv_len")
export declare function kv_len(kv: i32): i32;

/** msgpack {len, pages, shared, tier, rights, path, expires_ms}; needs R. */
// @ts-ignore: decorator
@external("lip", "kv_stat")
export declare function kv_stat(kv: i32, ptr: usize, cap: u32): i32;

/** Writes n tokens from entry `start`; needs R. */
// @ts-ignore: decorator
@external("lip", "kv_tokens")
export declare function kv_tokens(kv: i32, start: u32, n: u32, out: usize): i32;

/** Names the file; needs S. Flags: 1 replace, 2 durable, 4 public. */
// @ts-ignore: decorator
@external("lip", "kv_save")
export declare function kv_save(kv: i32, path: usize, path_len: u32, flags: u32): i32;

/** The name goes; open handles stay valid. */
// @ts-ignore: decorator
@external("lip", "kv_remove")
export declare function kv_remove(path: usize, path_len: u32): i32;

/** msgpack list of {path, len, pages, tier, durable, public, expires_ms}. */
// @ts-ignore: decorator
@external("lip", "kv_list")
export declare function kv_list(prefix: usize, len: u32, ptr: usize, cap: u32): i32;

/** As kv_list: at most `max` of them, from the first behind the path `after`. */
// @ts-ignore: decorator
@external("lip", "kv_list_after")
export declare function kv_list_after(
  prefix: usize,
  len: u32,
  after: usize,
  after_len: u32,
  max: u32,
  ptr: usize,
  cap: u32,
): i32;

/** A budgeted wish about where the file's pages live. */
// @ts-ignore: decorator
@external("lip", "kv_advise")
export declare function kv_advise(kv: i32, hint: i32, arg: i64): i32;

/** Gives a child or the parent (pid 0) a handle with at most these rights; needs G. */
// @ts-ignore: decorator
@external("lip", "kv_grant")
export declare function kv_grant(kv: i32, pid: i32, rights: u32, name: usize, name_len: u32): i32;

/** The handle granted to this instance under that name, or ENOENT. */
// @ts-ignore: decorator
@external("lip", "kv_granted")
export declare function kv_granted(name: usize, name_len: u32): i32;

/**
 * Offers the file's whole pages to the tenant's prefix cache; needs R. Returns the entries taken.
 */
// @ts-ignore: decorator
@external("lip", "kv_offer")
export declare function kv_offer(kv: i32): i32;

/** A new file of the longest offered prefix of these tokens, at most n - 1 of them, or ENOENT. */
// @ts-ignore: decorator
@external("lip", "kv_match")
export declare function kv_match(tokens: usize, n: u32): i32;

/** Closes the handle. */
// @ts-ignore: decorator
@external("lip", "kv_close")
export declare function kv_close(kv: i32): i32;

// --- The outside ---------------------------------------------------------------------------------

/** msgpack {method, url, headers, body, timeout_ms} -> {status, headers, body}. */
// @ts-ignore: decorator
@external("lip", "http")
export declare function http(ptr: usize, len: u32): i32;

/** msgpack {name, arguments} -> {ok, content}. */
// @ts-ignore: decorator
@external("lip", "tool")
export declare function tool(ptr: usize, len: u32): i32;

/** msgpack list of {name, description, schema}. */
// @ts-ignore: decorator
@external("lip", "tools")
export declare function tools(ptr: usize, cap: u32): i32;
