//! The calls of [`crate::raw`], answered by the host of this thread.
#![allow(missing_docs, clippy::missing_safety_doc)]

use super::constraints::{self, Text};
use super::generations::{self, Generation};
use super::{passes, Exit, Work, World, EOS, PAGE_SIZE, VOCAB_SIZE, WORLD};
use crate::msgpack::{self, Writer};
use crate::value::Value;
use crate::Errno;
use std::string::{String, ToString};
use std::vec::Vec;

pub use super::constraints::{constraint, constraint_close, last_error};

type Answer = Result<i32, Errno>;

pub(super) fn with(call: impl FnOnce(&mut World) -> Answer) -> i32 {
    WORLD.with(|world| match world.borrow_mut().as_mut() {
        Some(world) => call(world).unwrap_or_else(|errno| -errno.number()),
        // Files and tickets may outlive their host; anything else is a test that forgot it.
        None => -Errno::EBADF.number(),
    })
}

pub(super) unsafe fn items<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // The caller is this crate: the pointer is a slice's.
    unsafe { std::slice::from_raw_parts(ptr, len) }
}

pub(super) unsafe fn text<'a>(ptr: *const u8, len: usize) -> Result<&'a str, Errno> {
    std::str::from_utf8(unsafe { items(ptr, len) }).map_err(|_| Errno::EINVAL)
}

pub(super) unsafe fn put<T: Copy>(values: &[T], out: *mut T, cap: usize) -> Answer {
    if values.len() <= cap && !values.is_empty() {
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len()) };
    }
    Ok(values.len() as i32)
}

fn file(world: &mut World, kv: i32) -> Result<&mut Vec<u32>, Errno> {
    if world.tickets.values().any(|ticket| ticket.keeps(kv)) {
        return Err(Errno::EBUSY);
    }
    world.files.get_mut(&kv).ok_or(Errno::EBADF)
}

fn range(file: &[u32], start: u32, end: u32) -> Result<&[u32], Errno> {
    file.get(start as usize..end as usize).ok_or(Errno::EINVAL)
}

// --- Process and tickets -------------------------------------------------------------------------

pub unsafe fn input_read(ptr: *mut u8, cap: usize) -> i32 {
    with(|world| unsafe { put(&world.input, ptr, cap) })
}

pub unsafe fn send(ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        world.seen.sent.push(unsafe { items(ptr, len) }.to_vec());
        Ok(0)
    })
}

pub unsafe fn recv() -> i32 {
    with(|world| {
        let state = match world.inbox.pop_front() {
            Some(message) => Work::Ready(Ok(message)),
            None if world.inbox_open => Work::Silence,
            None => Work::Ready(Err(Errno::EPIPE.number())),
        };
        Ok(world.issue(state))
    })
}

pub unsafe fn log(level: i32, ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        world.seen.log.push((level, unsafe { text(ptr, len) }?.to_string()));
        Ok(0)
    })
}

pub unsafe fn exit(code: i32) {
    with(|world| {
        world.seen.exit = Some(code);
        Ok(0)
    });
    std::panic::resume_unwind(std::boxed::Box::new(Exit));
}

pub unsafe fn clock_ms() -> i64 {
    WORLD.with(|world| world.borrow().as_ref().map_or(0, |world| world.clock))
}

pub unsafe fn unix_ms() -> i64 {
    1_800_000_000_000 + unsafe { clock_ms() }
}

pub unsafe fn random(ptr: *mut u8, len: usize) -> i32 {
    with(|world| {
        let noise = (0..len).map(|_| {
            world.noise += 1;
            passes::mix(world.noise) as u8
        });
        unsafe { put(&noise.collect::<Vec<u8>>(), ptr, len) }.map(|_| 0)
    })
}

pub unsafe fn sleep(ms: i64) -> i32 {
    with(|world| {
        let until = world.clock.saturating_add(ms.max(0));
        Ok(world.issue(Work::Sleep(until)))
    })
}

pub unsafe fn spawn(ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        let request = msgpack::decode(unsafe { items(ptr, len) }).map_err(|_| Errno::EINVAL)?;
        let entry = request.get("entry").and_then(Value::as_str).unwrap_or("lip_main");
        let input = request.get("input").and_then(Value::as_bytes).unwrap_or_default();
        if request.get("grants").and_then(Value::as_array).map_or(false, |g| !g.is_empty()) {
            return Err(Errno::ENOSYS);
        }
        let main = world.children.get(entry).cloned().ok_or(Errno::ENOENT)?;
        world.ended.push(main(input));
        let pid = world.ended.len() as u32;
        Ok(world.issue(Work::Ready(Ok(pid.to_le_bytes().to_vec()))))
    })
}

pub unsafe fn join(pid: i32) -> i32 {
    with(|world| {
        let index = usize::try_from(pid).ok().and_then(|pid| pid.checked_sub(1));
        let ended = index.and_then(|index| world.ended.get(index)).ok_or(Errno::EINVAL)?;
        let mut out = Writer::new();
        out.map(2).str("code").int(i64::from(ended.0)).str("output").bin(&ended.1);
        Ok(world.issue(Work::Ready(Ok(out.into_bytes()))))
    })
}

pub unsafe fn channel_send(_: *const u8, _: usize, _: *const u8, _: usize) -> i32 {
    with(|_| Err(Errno::ENOSYS))
}

pub unsafe fn channel_recv(_: *const u8, _: usize) -> i32 {
    with(|_| Err(Errno::ENOSYS))
}

pub unsafe fn wait(tickets_ptr: *const i32, n: usize, timeout_ms: i64) -> i32 {
    with(|world| {
        let tickets = unsafe { items(tickets_ptr, n) };
        let passes = std::mem::take(&mut world.passes) + generations::step(world);
        world.seen.passes_per_wait.push(passes);
        for ticket in world.tickets.values_mut() {
            if let Work::Pass(result) = &mut ticket.state {
                ticket.state = Work::Ready(Ok(std::mem::take(result)));
            }
        }
        let deadline = if timeout_ms < 0 { i64::MAX } else { world.clock + timeout_ms };
        loop {
            if let Some(index) = ready(world, tickets)? {
                return Ok(index as i32);
            }
            // A generation that gives its tokens in lots takes several steps.
            let steps = generations::step(world);
            if steps > 0 {
                world.seen.passes_per_wait.push(steps);
                continue;
            }
            let sleeps = tickets.iter().filter_map(|id| match world.tickets[id].state {
                Work::Sleep(until) => Some(until),
                _ => None,
            });
            match sleeps.min().filter(|until| *until <= deadline) {
                Some(until) => world.clock = until,
                None if deadline < i64::MAX => {
                    world.clock = deadline;
                    return Err(Errno::ETIMEDOUT);
                }
                None => panic!("the program waits for ever"),
            }
        }
    })
}

/// The index of the first ticket that is ready.
fn ready(world: &World, tickets: &[i32]) -> Result<Option<usize>, Errno> {
    for (index, id) in tickets.iter().enumerate() {
        match world.tickets.get(id).ok_or(Errno::EBADF)?.state {
            Work::Ready(_) => return Ok(Some(index)),
            Work::Generation(ref generation) if generation.ready() => return Ok(Some(index)),
            Work::Sleep(until) if until <= world.clock => return Ok(Some(index)),
            _ => {}
        }
    }
    Ok(None)
}

pub unsafe fn take(ticket: i32, ptr: *mut u8, cap: usize) -> i32 {
    with(|world| {
        world.seen.takes += 1;
        let clock = world.clock;
        if let Some(result) = generations::take(world, ticket, cap) {
            return match result? {
                Ok(records) => unsafe { put(&records, ptr, cap) },
                Err(length) => Ok(length),
            };
        }
        let result = match &world.tickets.get(&ticket).ok_or(Errno::EBADF)?.state {
            Work::Ready(result) => result.clone(),
            Work::Sleep(until) if *until <= clock => Ok(Vec::new()),
            _ => return Err(Errno::EAGAIN),
        };
        let fits = result.as_ref().map_or(true, |bytes| bytes.len() <= cap);
        if fits {
            world.tickets.remove(&ticket);
        }
        unsafe { put(&result.map_err(Errno::new)?, ptr, cap) }
    })
}

pub unsafe fn claim(ticket: i32, ptr: *mut u8, cap: usize, timeout_ms: i64) -> i32 {
    let index = unsafe { wait(&ticket, 1, timeout_ms) };
    if index < 0 {
        return index;
    }
    unsafe { take(ticket, ptr, cap) }
}

pub unsafe fn cancel(ticket: i32) -> i32 {
    with(|world| {
        world.tickets.remove(&ticket).ok_or(Errno::EBADF)?;
        world.seen.cancelled += 1;
        Ok(0)
    })
}

// --- Model ---------------------------------------------------------------------------------------

pub unsafe fn model_info(ptr: *mut u8, cap: usize) -> i32 {
    let mut out = Writer::new();
    out.map(8).str("name").str("bytes").str("vocab_size").uint(u64::from(VOCAB_SIZE));
    out.str("eos").array(1).uint(u64::from(EOS)).str("bos").nil();
    out.str("max_context").uint(4096).str("page_size").uint(16).str("dtype").str("fp32");
    out.str("hidden_size").uint(passes::HIDDEN_SIZE as u64);
    with(|_| unsafe { put(out.bytes(), ptr, cap) })
}

pub unsafe fn tokenize(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32 {
    with(|_| {
        let tokens: Vec<u32> = unsafe { items(ptr, len) }.iter().map(|b| u32::from(*b)).collect();
        unsafe { put(&tokens, out, cap) }
    })
}

pub unsafe fn detokenize(tokens: *const u32, n: usize, out: *mut u8, cap: usize) -> i32 {
    with(|_| {
        let tokens = unsafe { items(tokens, n) };
        if tokens.iter().any(|token| *token >= VOCAB_SIZE) {
            return Err(Errno::EINVAL);
        }
        let bytes: Vec<u8> = tokens.iter().filter_map(|t| u8::try_from(*t).ok()).collect();
        unsafe { put(&bytes, out, cap) }
    })
}

pub unsafe fn chat(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32 {
    with(|_| {
        let messages = msgpack::decode(unsafe { items(ptr, len) }).map_err(|_| Errno::EINVAL)?;
        let mut text = String::new();
        for message in messages.as_array().ok_or(Errno::EINVAL)? {
            let field = |key| message.get(key).and_then(Value::as_str).ok_or(Errno::EINVAL);
            text += &std::format!("<{}>{}\n", field("role")?, field("content")?);
        }
        text += "<assistant>";
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        unsafe { put(&tokens, out, cap) }
    })
}

pub unsafe fn chat_with(ptr: *const u8, len: usize, out: *mut u32, cap: usize) -> i32 {
    let request = msgpack::decode(unsafe { items(ptr, len) }).ok();
    match request.as_ref().and_then(|request| request.get("messages")) {
        Some(messages) => {
            let bytes = msgpack::encode(messages);
            unsafe { chat(bytes.as_ptr(), bytes.len(), out, cap) }
        }
        None => with(|_| Err(Errno::EINVAL)),
    }
}

pub unsafe fn pred(
    kv: i32,
    tokens: *const u32,
    n: usize,
    positions: *const u32,
    opts: *const u8,
    opts_len: usize,
) -> i32 {
    let _ = positions; // the host's model knows the order of tokens alone
    let (tokens, options) = unsafe { (items(tokens, n), items(opts, opts_len)) };
    with(|world| begin(world, kv, tokens, options, usize::MAX))
}

pub unsafe fn pred_claim(
    kv: i32,
    tokens: *const u32,
    n: usize,
    positions: *const u32,
    opts: *const u8,
    opts_len: usize,
    ptr: *mut u8,
    cap: usize,
) -> i32 {
    let _ = positions;
    let (tokens, options) = unsafe { (items(tokens, n), items(opts, opts_len)) };
    let mut begun = false;
    let found = with(|world| {
        let passes = world.passes;
        let found = begin(world, kv, tokens, options, cap);
        begun = world.passes > passes;
        found
    });
    if !begun {
        return found;
    }
    unsafe { claim(found, ptr, cap, -1) }
}

/// Begins a pass and returns its ticket; where its result is longer than `cap`, nothing but that
/// length.
fn begin(world: &mut World, kv: i32, tokens: &[u32], options: &[u8], cap: usize) -> Answer {
    let before = file(world, kv)?.clone();
    let options = passes::options(options)?;
    let text = Text::of(world, kv, before.len() + tokens.len(), &options)?;
    let (result, after) = passes::run(world, &before, tokens, &options, text.as_ref())?;
    if result.len() > cap {
        return Ok(result.len() as i32);
    }
    if let Some(text) = text.filter(|_| after.len() > before.len()) {
        text.note(world);
    }
    *file(world, kv)? = after;
    world.passes += 1;
    Ok(world.issue(Work::Pass(result)))
}

pub unsafe fn generate(
    kv: i32,
    tokens: *const u32,
    n: usize,
    opts: *const u8,
    opts_len: usize,
) -> i32 {
    with(|world| {
        let history = file(world, kv)?.clone();
        let (tokens, options) = unsafe { (items(tokens, n), items(opts, opts_len)) };
        let made = Generation::new(world, kv, history, tokens, options)?;
        Ok(world.issue(Work::Generation(made)))
    })
}

// --- KV files ------------------------------------------------------------------------------------

pub unsafe fn kv_create() -> i32 {
    with(|world| Ok(world.open(Vec::new())))
}

pub unsafe fn kv_open(path: *const u8, path_len: usize, _rights: i32) -> i32 {
    with(|world| {
        let path = unsafe { text(path, path_len) }?;
        let tokens = world.names.get(path).cloned().ok_or(Errno::ENOENT)?;
        Ok(world.open(tokens))
    })
}

pub unsafe fn kv_fork(kv: i32) -> i32 {
    with(|world| {
        let tokens = file(world, kv)?.clone();
        let fork = world.open(tokens);
        constraints::forked(world, kv, fork);
        Ok(fork)
    })
}

pub unsafe fn kv_extract(kv: i32, ranges: *const u32, n: usize) -> i32 {
    with(|world| {
        let source = file(world, kv)?;
        let mut tokens = Vec::new();
        for pair in unsafe { items(ranges, 2 * n) }.chunks_exact(2) {
            tokens.extend_from_slice(range(source, pair[0], pair[1])?);
        }
        Ok(world.open(tokens))
    })
}

pub unsafe fn kv_append(kv: i32, src: i32, start: u32, end: u32) -> i32 {
    with(|world| {
        let tokens = range(file(world, src)?, start, end)?.to_vec();
        file(world, kv)?.extend(tokens);
        Ok(0)
    })
}

pub unsafe fn kv_truncate(kv: i32, len: u32) -> i32 {
    with(|world| {
        let tokens = file(world, kv)?;
        if len as usize > tokens.len() {
            return Err(Errno::EINVAL);
        }
        tokens.truncate(len as usize);
        constraints::shortened(world, kv, Some(len as usize));
        Ok(0)
    })
}

pub unsafe fn kv_len(kv: i32) -> i32 {
    with(|world| Ok(file(world, kv)?.len() as i32))
}

pub unsafe fn kv_stat(kv: i32, ptr: *mut u8, cap: usize) -> i32 {
    with(|world| {
        let len = file(world, kv)?.len() as u64;
        let mut out = Writer::new();
        out.map(8).str("len").uint(len).str("pages").uint((len + 15) / 16);
        out.str("shared").uint(0).str("tier").str("device").str("rights").uint(31);
        out.str("path").str("").str("expires_ms").uint(0).str("cached").uint(0);
        unsafe { put(out.bytes(), ptr, cap) }
    })
}

pub unsafe fn kv_tokens(kv: i32, start: u32, n: usize, out: *mut u32) -> i32 {
    with(|world| {
        let tokens = range(file(world, kv)?, start, start + n as u32)?;
        unsafe { put(tokens, out, n) }
    })
}

pub unsafe fn kv_save(kv: i32, path: *const u8, path_len: usize, flags: i32) -> i32 {
    with(|world| {
        let path = unsafe { text(path, path_len) }?.to_string();
        if flags & !1 != 0 {
            return Err(Errno::ENOSYS);
        }
        if flags == 0 && world.names.contains_key(&path) {
            return Err(Errno::EEXIST);
        }
        let tokens = file(world, kv)?.clone();
        world.names.insert(path, tokens);
        Ok(0)
    })
}

pub unsafe fn kv_remove(path: *const u8, path_len: usize) -> i32 {
    with(|world| {
        let path = unsafe { text(path, path_len) }?;
        world.names.remove(path).map(|_| 0).ok_or(Errno::ENOENT)
    })
}

pub unsafe fn kv_list(prefix: *const u8, len: usize, ptr: *mut u8, cap: usize) -> i32 {
    with(|world| {
        let prefix = unsafe { text(prefix, len) }?;
        let named: Vec<_> =
            world.names.iter().filter(|(path, _)| path.starts_with(prefix)).collect();
        unsafe { put(&listing(&named), ptr, cap) }
    })
}

pub unsafe fn kv_list_after(
    prefix: *const u8,
    len: usize,
    after: *const u8,
    after_len: usize,
    max: usize,
    ptr: *mut u8,
    cap: usize,
) -> i32 {
    with(|world| {
        let (prefix, after) = (unsafe { text(prefix, len) }?, unsafe { text(after, after_len) }?);
        if max == 0 || max > 4096 {
            return Err(Errno::EINVAL);
        }
        let named = world.names.iter().filter(|(path, _)| path.starts_with(prefix));
        let named: Vec<_> = named.filter(|(path, _)| path.as_str() > after).take(max).collect();
        unsafe { put(&listing(&named), ptr, cap) }
    })
}

fn listing(named: &[(&String, &Vec<u32>)]) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(named.len());
    for (path, tokens) in named {
        let len = tokens.len() as u64;
        out.map(7).str("path").str(path).str("len").uint(len).str("tier").str("device");
        out.str("pages").uint((len + 15) / 16).str("durable").bool(false);
        out.str("public").bool(false).str("expires_ms").uint(0);
    }
    out.bytes().to_vec()
}

pub unsafe fn kv_advise(kv: i32, hint: i32, argument: i64) -> i32 {
    with(|world| {
        file(world, kv)?;
        match (hint, argument) {
            (0, 0) | (2, 0) | (3, 0) | (4, 0..=7) => Ok(0),
            (1, ms) if ms >= 0 => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    })
}

pub unsafe fn kv_grant(_: i32, _: i32, _: i32, _: *const u8, _: usize) -> i32 {
    with(|_| Err(Errno::ENOSYS))
}

pub unsafe fn kv_granted(_: *const u8, _: usize) -> i32 {
    with(|_| Err(Errno::ENOENT))
}

pub unsafe fn kv_offer(kv: i32) -> i32 {
    with(|world| {
        let mut tokens = file(world, kv)?.clone();
        tokens.truncate(tokens.len() / PAGE_SIZE * PAGE_SIZE);
        let offered = tokens.len() as i32;
        world.offered.push(tokens);
        Ok(offered)
    })
}

pub unsafe fn kv_match(tokens: *const u32, n: usize) -> i32 {
    with(|world| {
        let tokens = unsafe { items(tokens, n) };
        let most = tokens.len().checked_sub(1).ok_or(Errno::EINVAL)? / PAGE_SIZE;
        let same = |offered: &Vec<u32>| {
            let pages = offered.chunks(PAGE_SIZE).zip(tokens.chunks(PAGE_SIZE)).take(most);
            pages.take_while(|(offered, wanted)| offered == wanted).count()
        };
        match world.offered.iter().map(same).max().unwrap_or(0) {
            0 => Err(Errno::ENOENT),
            pages => Ok(world.open(tokens[..pages * PAGE_SIZE].to_vec())),
        }
    })
}

pub unsafe fn kv_close(kv: i32) -> i32 {
    with(|world| {
        constraints::shortened(world, kv, None);
        world.files.remove(&kv).map(|_| 0).ok_or(Errno::EBADF)
    })
}

// --- The outside ---------------------------------------------------------------------------------

pub unsafe fn http(ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        let request = msgpack::decode(unsafe { items(ptr, len) }).map_err(|_| Errno::EINVAL)?;
        let result = (world.site)(&request).map(|answer| {
            let mut out = Writer::new();
            out.map(3).str("status").uint(u64::from(answer.status));
            out.str("headers").map(answer.headers.len());
            for (name, value) in &answer.headers {
                out.str(name).str(value);
            }
            out.str("body").bin(&answer.body);
            out.into_bytes()
        });
        Ok(world.issue(Work::Ready(result.ok_or(Errno::EACCES.number()))))
    })
}

pub unsafe fn tool(ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        let request = msgpack::decode(unsafe { items(ptr, len) }).map_err(|_| Errno::EINVAL)?;
        let name = request.get("name").and_then(Value::as_str).ok_or(Errno::EINVAL)?;
        let arguments = request.get("arguments").cloned().unwrap_or(Value::Map(Vec::new()));
        let result = world.tools.get(name).map(|tool| {
            let answer = tool(&arguments);
            let mut out = Writer::new();
            out.map(2).str("ok").bool(answer.ok).str("content").str(&answer.content);
            out.into_bytes()
        });
        Ok(world.issue(Work::Ready(result.ok_or(Errno::ENOENT.number()))))
    })
}

pub unsafe fn tools(ptr: *mut u8, cap: usize) -> i32 {
    with(|world| {
        let mut out = Writer::new();
        out.array(world.tools.len());
        for name in world.tools.keys() {
            out.map(3).str("name").str(name).str("description").str("").str("schema").map(0);
        }
        unsafe { put(out.bytes(), ptr, cap) }
    })
}
