//! The client's calls, as calls of the ABI: what is checked here is only what the ABI cannot check.

use crate::files::Files;
use crate::frame::{Call, Refused};
use crate::pending::{last_error, Gives};
use symphony::msgpack::{self, Writer};
use symphony::{raw, Errno};

/// Bytes of the list of a child's grants.
const GRANTS_BYTES_MAX: usize = 64 << 10;

/// What a call has at once.
pub enum Given {
    Nothing,
    Number(i64),
    Bytes(Vec<u8>),
    /// A ticket, whose result is the answer.
    Started(i32, Gives),
}

/// Why a call has no answer, and in words if there are any.
pub struct Failed(pub Errno, pub String);

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Failed {
        Failed(Errno::EINVAL, refused.0)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed(errno, String::new())
    }
}

pub type Outcome = Result<Given, Failed>;

/// Makes a call of the ABI.
pub fn perform(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    match call.name {
        "pred" | "generate" => compute(call, files),
        "tokenize" | "detokenize" | "chat" | "chat_with" => convert(call),
        "model_info" | "tools" | "kv_list" => describe(call),
        "constraint" | "constraint_close" => constrain(call),
        "sleep" | "spawn" | "join" | "channel_send" | "channel_recv" => process(call, files),
        "http" | "tool" => outside(call),
        name if name.starts_with("kv_") => kv(call, files),
        name => Err(Failed(Errno::ENOSYS, format!("there is no call `{}`", name))),
    }
}

fn compute(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    let kv = files.handle(call.u32("kv")?);
    let (tokens, opts) = (call.words("tokens")?, call.bytes("opts")?);
    let (from, count) = (tokens.as_ptr(), tokens.len());
    if call.name == "generate" {
        call.end()?;
        let made = unsafe { raw::generate(kv?, from, count, opts.as_ptr(), opts.len()) };
        return started(made, Gives::Pieces);
    }
    let positions = call.words("positions")?;
    call.end()?;
    let places = match positions.len() {
        0 => std::ptr::null(),
        length if length == count => positions.as_ptr(),
        _ => return Err(Refused("pred: `positions` has one for each token".into()).into()),
    };
    let made = unsafe { raw::pred(kv?, from, count, places, opts.as_ptr(), opts.len()) };
    started(made, Gives::Whole)
}

fn convert(call: &mut Call<'_>) -> Outcome {
    let key = match call.name {
        "tokenize" => "text",
        "detokenize" => "tokens",
        _ => "conversation",
    };
    let bytes = call.bytes(key)?;
    call.end()?;
    let (from, length) = (bytes.as_ptr(), bytes.len());
    match call.name {
        "detokenize" => {
            let tokens: Vec<u32> = bytes
                .chunks_exact(4)
                .map(|part| u32::from_le_bytes([part[0], part[1], part[2], part[3]]))
                .collect();
            let count = tokens.len();
            filled(8 * count + 64, |out, room| unsafe {
                raw::detokenize(tokens.as_ptr(), count, out, room)
            })
        }
        "tokenize" => tokens(length / 2 + 16, |out, room| unsafe {
            raw::tokenize(from, length, out, room)
        }),
        "chat" => tokens(length / 2 + 64, |out, room| unsafe {
            raw::chat(from, length, out, room)
        }),
        _ => tokens(length / 2 + 64, |out, room| unsafe {
            raw::chat_with(from, length, out, room)
        })
        .map_err(worded),
    }
}

fn describe(call: &mut Call<'_>) -> Outcome {
    match call.name {
        "model_info" => {
            call.end()?;
            filled(512, |out, room| unsafe { raw::model_info(out, room) })
        }
        "tools" => {
            call.end()?;
            filled(4096, |out, room| unsafe { raw::tools(out, room) })
        }
        _ => {
            let prefix = call.text_or("prefix")?.unwrap_or("");
            let after = call.text_or("after")?.unwrap_or("");
            let max = call.int_or("max", 0, 1, 1 << 20)? as usize;
            call.end()?;
            let (from, length) = (prefix.as_ptr(), prefix.len());
            if max == 0 && after.is_empty() {
                return filled(4096, |out, room| unsafe { raw::kv_list(from, length, out, room) });
            }
            let max = if max == 0 { 4_096 } else { max };
            let (behind, size) = (after.as_ptr(), after.len());
            filled(4096, |out, room| unsafe {
                raw::kv_list_after(from, length, behind, size, max, out, room)
            })
        }
    }
}

fn constrain(call: &mut Call<'_>) -> Outcome {
    if call.name == "constraint_close" {
        let handle = call.i32("constraint")?;
        call.end()?;
        return nothing(unsafe { raw::constraint_close(handle) });
    }
    let (kind, text) = (call.i32("kind")?, call.text("text")?);
    call.end()?;
    let made = unsafe { raw::constraint(kind, text.as_ptr(), text.len()) };
    number(made).map_err(worded)
}

fn process(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    match call.name {
        "sleep" => {
            let ms = call.int_or("ms", 0, 0, i64::MAX)?;
            call.end()?;
            started(unsafe { raw::sleep(ms) }, Gives::Whole)
        }
        "spawn" => {
            let request = child(call, files)?;
            started(unsafe { raw::spawn(request.as_ptr(), request.len()) }, Gives::Worded)
        }
        "join" => {
            let pid = call.i32("pid")?;
            call.end()?;
            started(unsafe { raw::join(pid) }, Gives::Whole)
        }
        "channel_recv" => {
            let name = call.text("name")?;
            call.end()?;
            let made = unsafe { raw::channel_recv(name.as_ptr(), name.len()) };
            started(made, Gives::Worded)
        }
        _ => {
            let (name, item) = (call.text("name")?, call.bytes("item")?);
            call.end()?;
            let (from, length) = (item.as_ptr(), item.len());
            let sent = unsafe { raw::channel_send(name.as_ptr(), name.len(), from, length) };
            nothing(sent).map_err(worded)
        }
    }
}

/// The request for a child: the client's, with handles for its numbers of files.
fn child(call: &mut Call<'_>, files: &mut Files) -> Result<Vec<u8>, Failed> {
    // Without a program it would be this one again, whose client the child does not have.
    let (program, entry) = (call.text("program")?, call.text_or("entry")?);
    let (input, grants) = (call.bytes("input")?, call.nested("grants")?);
    call.end()?;
    let wrong = || Refused("spawn: `grants` is a list of {kv, rights, name}".into());
    if grants.len() > GRANTS_BYTES_MAX {
        return Err(Failed(Errno::EFBIG, "spawn: `grants` has at most 64 KiB".into()));
    }
    let list = if grants.is_empty() { b"\x90" } else { grants };
    let list = msgpack::decode(list).map_err(|_| wrong())?;
    let list = list.as_array().ok_or_else(wrong)?;
    let mut out = Writer::new();
    out.map(3 + usize::from(entry.is_some())).str("program").str(program);
    if let Some(entry) = entry {
        out.str("entry").str(entry);
    }
    out.str("input").bin(input).str("grants").array(list.len());
    for grant in list {
        let kv = grant.get("kv").and_then(|kv| kv.as_u32()).ok_or_else(wrong)?;
        let rights = grant.get("rights").and_then(|bits| bits.as_u32()).ok_or_else(wrong)?;
        let name = grant.get("name").and_then(|name| name.as_str()).ok_or_else(wrong)?;
        if grant.as_map().map_or(0, <[_]>::len) != 3 {
            return Err(wrong().into());
        }
        out.map(3).str("handle").int(i64::from(files.handle(kv)?));
        out.str("rights").uint(u64::from(rights)).str("name").str(name);
    }
    Ok(out.into_bytes())
}

fn outside(call: &mut Call<'_>) -> Outcome {
    let request = call.bytes("request")?;
    call.end()?;
    let (from, length) = (request.as_ptr(), request.len());
    let made = match call.name {
        "http" => unsafe { raw::http(from, length) },
        _ => unsafe { raw::tool(from, length) },
    };
    started(made, Gives::Worded)
}

// --- KV files ------------------------------------------------------------------------------------

fn kv(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    match call.name {
        "kv_create" | "kv_open" | "kv_fork" | "kv_extract" | "kv_granted" | "kv_match" => {
            make(call, files)
        }
        "kv_len" | "kv_stat" | "kv_tokens" => read(call, files),
        "kv_append" | "kv_truncate" | "kv_close" | "kv_label" => change(call, files),
        "kv_save" | "kv_remove" | "kv_offer" | "kv_advise" | "kv_grant" => keep(call, files),
        name => Err(Failed(Errno::ENOSYS, format!("there is no call `{}`", name))),
    }
}

/// Calls that make a file with the number `new`. A failure is the answer to each call on it, too.
fn make(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    let new = call.u32("new")?;
    files.check_new(new)?;
    let made = match made(call, files) {
        Ok(made) => made,
        Err(failed) => {
            files.add(new, Err(failed.0));
            return Err(failed);
        }
    };
    let handle = if made < 0 { Err(Errno::new(made.wrapping_neg())) } else { Ok(made) };
    files.add(new, handle);
    match handle {
        Ok(_) => Ok(Given::Nothing),
        Err(errno) => Err(limited(errno)),
    }
}

fn made(call: &mut Call<'_>, files: &Files) -> Result<i32, Failed> {
    Ok(match call.name {
        "kv_create" => {
            call.end()?;
            unsafe { raw::kv_create() }
        }
        "kv_open" => {
            let path = call.text("path")?;
            let rights = call.int_or("rights", 31, 0, 31)? as i32;
            call.end()?;
            unsafe { raw::kv_open(path.as_ptr(), path.len(), rights) }
        }
        "kv_fork" => {
            let kv = files.handle(call.u32("kv")?);
            call.end()?;
            unsafe { raw::kv_fork(kv?) }
        }
        "kv_extract" => {
            let (kv, ranges) = (files.handle(call.u32("kv")?), call.words("ranges")?);
            call.end()?;
            if ranges.len() % 2 != 0 {
                return Err(Refused("kv_extract: `ranges` has pairs of numbers".into()).into());
            }
            unsafe { raw::kv_extract(kv?, ranges.as_ptr(), ranges.len() / 2) }
        }
        "kv_granted" => {
            let name = call.text("name")?;
            call.end()?;
            unsafe { raw::kv_granted(name.as_ptr(), name.len()) }
        }
        _ => {
            let tokens = call.words("tokens")?;
            call.end()?;
            unsafe { raw::kv_match(tokens.as_ptr(), tokens.len()) }
        }
    })
}

fn read(call: &mut Call<'_>, files: &Files) -> Outcome {
    let kv = files.handle(call.u32("kv")?);
    match call.name {
        "kv_len" => {
            call.end()?;
            number(unsafe { raw::kv_len(kv?) })
        }
        "kv_stat" => {
            call.end()?;
            let kv = kv?;
            filled(512, |out, room| unsafe { raw::kv_stat(kv, out, room) })
        }
        _ => {
            let start = call.u32("start")?;
            let count = call.int_or("count", 0, 0, 1 << 20)? as usize;
            call.end()?;
            let mut out = vec![0u32; count];
            nothing(unsafe { raw::kv_tokens(kv?, start, count, out.as_mut_ptr()) })?;
            Ok(Given::Bytes(packed(&out)))
        }
    }
}

fn change(call: &mut Call<'_>, files: &mut Files) -> Outcome {
    let number = call.u32("kv")?;
    match call.name {
        "kv_close" => {
            call.end()?;
            files.close(number)?;
            Ok(Given::Nothing)
        }
        "kv_label" => {
            let label = call.text("label")?;
            call.end()?;
            files.label(number, label)?;
            Ok(Given::Nothing)
        }
        "kv_truncate" => {
            let len = call.u32("len")?;
            call.end()?;
            nothing(unsafe { raw::kv_truncate(files.handle(number)?, len) })
        }
        _ => {
            let source = call.u32("source")?;
            let (start, end) = (call.u32("start")?, call.u32("end")?);
            call.end()?;
            let (kv, source) = (files.handle(number)?, files.handle(source)?);
            nothing(unsafe { raw::kv_append(kv, source, start, end) })
        }
    }
}

fn keep(call: &mut Call<'_>, files: &Files) -> Outcome {
    if call.name == "kv_remove" {
        let path = call.text("path")?;
        call.end()?;
        return nothing(unsafe { raw::kv_remove(path.as_ptr(), path.len()) });
    }
    let kv = files.handle(call.u32("kv")?);
    match call.name {
        "kv_offer" => {
            call.end()?;
            number(unsafe { raw::kv_offer(kv?) })
        }
        "kv_save" => {
            let (path, flags) = (call.text("path")?, call.int_or("flags", 0, 0, 7)? as i32);
            call.end()?;
            nothing(unsafe { raw::kv_save(kv?, path.as_ptr(), path.len(), flags) })
        }
        "kv_advise" => {
            let hint = call.i32("hint")?;
            let argument = call.int_or("arg", 0, i64::MIN, i64::MAX)?;
            call.end()?;
            nothing(unsafe { raw::kv_advise(kv?, hint, argument) })
        }
        _ => {
            let (pid, name) = (call.i32("pid")?, call.text("name")?);
            let rights = call.int_or("rights", 31, 0, 31)? as i32;
            call.end()?;
            nothing(unsafe { raw::kv_grant(kv?, pid, rights, name.as_ptr(), name.len()) })
        }
    }
}

// --- Results -------------------------------------------------------------------------------------

/// An errno, with words where a limit has them.
fn limited(errno: Errno) -> Failed {
    match errno {
        Errno::EAGAIN | Errno::EDQUOT => Failed(errno, last_error()),
        _ => errno.into(),
    }
}

/// An errno of a call that has words.
fn worded(failed: Failed) -> Failed {
    Failed(failed.0, last_error())
}

fn check(result: i32) -> Result<i32, Failed> {
    if result < 0 {
        return Err(limited(Errno::new(result.wrapping_neg())));
    }
    Ok(result)
}

fn started(result: i32, gives: Gives) -> Outcome {
    check(result).map(|ticket| Given::Started(ticket, gives))
}

fn number(result: i32) -> Outcome {
    check(result).map(|number| Given::Number(i64::from(number)))
}

fn nothing(result: i32) -> Outcome {
    check(result).map(|_| Given::Nothing)
}

/// The output of an `(out, cap)` call.
fn filled(room: usize, mut call: impl FnMut(*mut u8, usize) -> i32) -> Outcome {
    let mut out = vec![0; room];
    loop {
        let length = check(call(out.as_mut_ptr(), out.len()))? as usize;
        if length <= out.len() {
            out.truncate(length);
            return Ok(Given::Bytes(out));
        }
        out.resize(length, 0);
    }
}

/// The same of a call that gives tokens.
fn tokens(room: usize, mut call: impl FnMut(*mut u32, usize) -> i32) -> Outcome {
    let mut out = vec![0u32; room];
    loop {
        let count = check(call(out.as_mut_ptr(), out.len()))? as usize;
        if count <= out.len() {
            out.truncate(count);
            return Ok(Given::Bytes(packed(&out)));
        }
        out.resize(count, 0);
    }
}

fn packed(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
