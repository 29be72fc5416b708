//! The ABI's calls as this program needs them: few allocations, tickets as plain numbers.

use symphony::msgpack::Writer;
use symphony::{msgpack, raw, Errno, Error, Result, Value};

fn check(call: &'static str, result: i32) -> Result<u32> {
    if result < 0 {
        Err(Error::new(call, Errno::new(result.wrapping_neg())))
    } else {
        Ok(result as u32)
    }
}

/// An empty KV file. Handles are not closed: the program's end does that.
pub fn kv_create() -> Result<i32> {
    check("kv_create", unsafe { raw::kv_create() }).map(|kv| kv as i32)
}

pub fn kv_fork(kv: i32) -> Result<i32> {
    check("kv_fork", unsafe { raw::kv_fork(kv) }).map(|kv| kv as i32)
}

pub fn kv_truncate(kv: i32, entries: usize) -> Result<()> {
    check("kv_truncate", unsafe { raw::kv_truncate(kv, entries as u32) }).map(drop)
}

pub fn kv_close(kv: i32) -> Result<()> {
    check("kv_close", unsafe { raw::kv_close(kv) }).map(drop)
}

/// A file with the longest offered beginning of the tokens, and how many it holds.
pub fn kv_match(tokens: &[u32]) -> Result<Option<(i32, usize)>> {
    let kv = match check("kv_match", unsafe { raw::kv_match(tokens.as_ptr(), tokens.len()) }) {
        Ok(kv) => kv as i32,
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        Err(error) => return Err(error),
    };
    check("kv_len", unsafe { raw::kv_len(kv) }).map(|length| Some((kv, length as usize)))
}

/// How many of the file's entries came from the prefix cache, by a match or by sharing.
pub fn kv_cached(kv: i32) -> Result<usize> {
    let mut room = [0; 512]; // these files have no names
    let length = check("kv_stat", unsafe { raw::kv_stat(kv, room.as_mut_ptr(), room.len()) })?;
    let stat = msgpack::decode(&room[..(length as usize).min(room.len())]).ok();
    Ok(stat.and_then(|stat| stat.get("cached")?.as_u32()).unwrap_or(0) as usize)
}

/// Offers what the file holds to later requests.
pub fn kv_offer(kv: i32) {
    // A wish: the answer is given in any case.
    let _ = unsafe { raw::kv_offer(kv) };
}

/// A ticket for one forward pass.
pub fn pred(kv: i32, tokens: &[u32], options: &[u8]) -> Result<i32> {
    let none = core::ptr::null();
    let result = unsafe {
        raw::pred(kv, tokens.as_ptr(), tokens.len(), none, options.as_ptr(), options.len())
    };
    check("pred", result).map(|ticket| ticket as i32)
}

/// Computes tokens for the file's sake, once for all that begin alike; a failure is the file's answer from then on.
pub fn fill(kv: i32, tokens: &[u32], adapter: &str) -> Result<i32> {
    pred(kv, tokens, &adapted(b"\x82\xa3get\xa4none\xa5share\xc3".to_vec(), adapter))
}

/// Options of a pass, with the adapter that computes it; empty: none.
pub fn adapted(mut options: Vec<u8>, adapter: &str) -> Vec<u8> {
    if adapter.is_empty() {
        return options;
    }
    if options.is_empty() {
        options.push(0x80);
    }
    // The head of a map of at most 15 entries: the options have fewer.
    options[0] += 1;
    let mut more = Writer::new();
    more.str("adapter").str(adapter);
    options.extend(more.into_bytes());
    options
}

/// A ticket for run-ahead decoding.
pub fn generate(kv: i32, tokens: &[u32], options: &[u8]) -> Result<i32> {
    let result = unsafe {
        raw::generate(kv, tokens.as_ptr(), tokens.len(), options.as_ptr(), options.len())
    };
    check("generate", result).map(|ticket| ticket as i32)
}

/// A handle for a compiled schema, expression or grammar; or what is wrong with it.
pub fn constraint(kind: i32, text: &[u8]) -> core::result::Result<i32, (Error, String)> {
    let made = check("constraint", unsafe { raw::constraint(kind, text.as_ptr(), text.len()) });
    made.map(|handle| handle as i32).map_err(|error| (error, last_error()))
}

/// Lets so much time pass.
pub fn sleep(ms: i64) -> Result<()> {
    let ticket = check("sleep", unsafe { raw::sleep(ms) })?;
    claim(ticket as i32, &mut []).map(|_| ())
}

/// The tokens of a msgpack conversation with tools; or what the chat template has against it.
pub fn chat_with(conversation: &[u8]) -> core::result::Result<Vec<u32>, (Error, String)> {
    let mut room = conversation.len() / 2 + 64;
    loop {
        let (from, length) = (conversation.as_ptr(), conversation.len());
        let mut out = vec![0; room];
        let result = unsafe { raw::chat_with(from, length, out.as_mut_ptr(), room) };
        let count = check("chat_with", result).map_err(|error| (error, last_error()))? as usize;
        if count <= room {
            out.truncate(count);
            return Ok(out);
        }
        room = count;
    }
}

fn last_error() -> String {
    let mut words = vec![0; 1024];
    let length = unsafe { raw::last_error(words.as_mut_ptr(), words.len()) };
    words.truncate(length.max(0) as usize);
    String::from_utf8_lossy(&words).into_owned()
}

/// Waits for the only ticket there is, and takes what it has.
pub fn claim(ticket: i32, out: &mut [u8]) -> Result<usize> {
    let result = unsafe { raw::claim(ticket, out.as_mut_ptr(), out.len(), -1) };
    check("claim", result).map(|length| length as usize)
}

/// Waits until one of the tickets is ready; its index.
pub fn wait(tickets: &[i32]) -> Result<usize> {
    let result = unsafe { raw::wait(tickets.as_ptr(), tickets.len(), -1) };
    check("wait", result).map(|index| index as usize)
}

/// Appends what a ticket has to `out`: `None` where nothing is ready.
pub fn take(ticket: i32, out: &mut [u8]) -> Result<Option<usize>> {
    match check("take", unsafe { raw::take(ticket, out.as_mut_ptr(), out.len()) }) {
        Ok(length) => Ok(Some(length as usize)),
        Err(error) if error.errno == Errno::EAGAIN => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn cancel(ticket: i32) {
    // An errno would say that the work has ended.
    let _ = unsafe { raw::cancel(ticket) };
}

/// Appends the tokens' bytes to `out`.
pub fn detokenize(tokens: &[u32], out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut room = 8 * tokens.len() + 32;
    loop {
        out.resize(start + room, 0);
        let at = out[start..].as_mut_ptr();
        let result = unsafe { raw::detokenize(tokens.as_ptr(), tokens.len(), at, room) };
        let length = check("detokenize", result)? as usize;
        if length <= room {
            out.truncate(start + length);
            return Ok(());
        }
        room = length;
    }
}

/// The tokens of msgpack messages through the model's chat template.
pub fn chat(messages: &[u8]) -> Result<Vec<u32>> {
    let mut room = messages.len() / 2 + 64;
    loop {
        let mut out = vec![0; room];
        let result =
            unsafe { raw::chat(messages.as_ptr(), messages.len(), out.as_mut_ptr(), room) };
        let length = check("chat", result)? as usize;
        if length <= room {
            out.truncate(length);
            return Ok(out);
        }
        room = length;
    }
}
