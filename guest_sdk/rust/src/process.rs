//! The program itself: its input, its user, time, children and queues.

use crate::error::{check, check_named, filled, Errno, Error, Result};
use crate::executor::Ticket;
use crate::json;
use crate::kv::{KvFile, Rights};
use crate::msgpack::{self, Writer};
use crate::raw;
use crate::value::{DecodeError, Value};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// The user's messages and the parent's grants name the parent by this pid.
pub const PARENT: u32 = 0;

/// The run's input.
pub fn input() -> Vec<u8> {
    filled("input_read", 1024, |ptr, cap| unsafe { raw::input_read(ptr, cap) }).unwrap_or_default()
}

/// The run's input as text; bytes that are no UTF-8 become U+FFFD.
pub fn input_text() -> String {
    String::from_utf8_lossy(&input()).into_owned()
}

/// The run's input, which was JSON; a run whose input is a string gets the string's bytes.
pub fn input_json() -> core::result::Result<Value, DecodeError> {
    json::decode(&input())
}

/// Sends one message to the user of the run.
#[track_caller]
pub fn send(message: impl AsRef<[u8]>) -> Result<()> {
    let message = message.as_ref();
    check("send", unsafe { raw::send(message.as_ptr(), message.len()) }).map(drop)
}

/// The next message from the user. `EPIPE` when the user has closed; [`recv_open`] says that
/// with `None`. Dropping the ticket drops a message that has come for it.
#[track_caller]
pub fn recv() -> Ticket<Vec<u8>> {
    Ticket::new("recv", unsafe { raw::recv() }, bytes, 0)
}

/// The next message from the user, or `None` when the user has closed.
pub async fn recv_open() -> Result<Option<Vec<u8>>> {
    match recv().await {
        Ok(message) => Ok(Some(message)),
        Err(Error { errno: Errno::EPIPE, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For the author of the program.
    Debug = 0,
    /// What went on.
    Info = 1,
    /// Something is odd.
    Warning = 2,
    /// Something failed.
    Error = 3,
}

/// Keeps a line with the run. A log that is full drops it.
pub fn log(level: Level, line: impl AsRef<str>) {
    let line = line.as_ref();
    // No caller can be told that the log is full.
    let _ = unsafe { raw::log(level as i32, line.as_ptr(), line.len()) };
}

/// Ends the program with this exit code; nothing is dropped, the server closes what is open.
pub fn exit(code: i32) -> ! {
    unsafe { raw::exit(code) };
    unreachable!("exit does not return")
}

/// Milliseconds since the program started.
pub fn clock_ms() -> u64 {
    unsafe { raw::clock_ms() as u64 }
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    unsafe { raw::unix_ms() as u64 }
}

/// Fills the bytes with random ones; at most 65,536 at once.
#[track_caller]
pub fn random(bytes: &mut [u8]) -> Result<()> {
    check("random", unsafe { raw::random(bytes.as_mut_ptr(), bytes.len()) }).map(drop)
}

/// A random number, such as a seed.
#[track_caller]
pub fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Ready after this time, to the millisecond.
#[track_caller]
pub fn sleep(time: Duration) -> Ticket<()> {
    let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Ticket::new("sleep", unsafe { raw::sleep(ms) }, nothing, 0)
}

/// Puts an item into a queue of the tenant, waiting for room for a while; then `EAGAIN`.
#[track_caller]
pub fn channel_send(name: &str, item: impl AsRef<[u8]>) -> Result<()> {
    let item = item.as_ref();
    let result = unsafe { raw::channel_send(name.as_ptr(), name.len(), item.as_ptr(), item.len()) };
    check_named("channel_send", name, result).map(drop)
}

/// The next item of a queue of the tenant.
#[track_caller]
pub fn channel_recv(name: &str) -> Ticket<Vec<u8>> {
    let result = unsafe { raw::channel_recv(name.as_ptr(), name.len()) };
    Ticket::named("channel_recv", name, result, bytes)
}

// --- Children ------------------------------------------------------------------------------------

/// What a child is to run: this program unless another is named, and `lip_main` unless another
/// entry is.
///
/// ```
/// # use symphony::testing::Host;
/// # let host = Host::new().child("worker", |input| (0, input.to_ascii_uppercase()));
/// # host.run(|| symphony::block_on(async {
/// use symphony::process::Child;
///
/// let child = Child::new().entry("worker").input("hello").start().await?;
/// let ended = child.join().await?;
/// assert_eq!((ended.code, ended.output), (0, b"HELLO".to_vec()));
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug, Default)]
#[must_use = "nothing runs until start()"]
pub struct Child<'a> {
    program: Option<&'a str>,
    entry: Option<&'a str>,
    input: Vec<u8>,
    grants: Vec<(i32, Rights, &'a str)>,
}

impl<'a> Child<'a> {
    /// This program again, without input.
    pub fn new() -> Child<'a> {
        Child::default()
    }

    /// Another program of the tenant, by name or id.
    pub fn program(mut self, name: &'a str) -> Child<'a> {
        self.program = Some(name);
        self
    }

    /// The export to run, of type `() -> i32`: see [`crate::entry!`].
    pub fn entry(mut self, name: &'a str) -> Child<'a> {
        self.entry = Some(name);
        self
    }

    /// The child's input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Child<'a> {
        self.input = input.into();
        self
    }

    /// Gives the child a handle of its own to a file: it gets it by [`KvFile::granted`].
    pub fn grant(mut self, kv: &'a KvFile, rights: Rights, name: &'a str) -> Child<'a> {
        self.grants.push((kv.handle(), rights, name));
        self
    }

    /// Starts it.
    #[track_caller]
    pub fn start(self) -> Ticket<Process> {
        let mut out = Writer::new();
        let given = [("program", self.program), ("entry", self.entry)];
        let named = given.iter().filter_map(|(key, name)| name.map(|name| (*key, name)));
        out.map(2 + named.clone().count());
        for (key, name) in named {
            out.str(key).str(name);
        }
        out.str("input").bin(&self.input).str("grants").array(self.grants.len());
        for (handle, rights, name) in &self.grants {
            out.map(3).str("handle").int(i64::from(*handle));
            out.str("rights").uint(u64::from(rights.bits())).str("name").str(name);
        }
        let request = out.bytes();
        let result = unsafe { raw::spawn(request.as_ptr(), request.len()) };
        let started = |bytes: &[u8], _| Some(Process { pid: u32_of(bytes)? });
        match self.program.or(self.entry) {
            Some(name) => Ticket::named("spawn", name, result, started),
            None => Ticket::new("spawn", result, started, 0),
        }
    }
}

/// A child that was started. It ends with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pid: u32,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// All that it sent.
    pub output: Vec<u8>,
}

impl Process {
    /// Its number, for [`KvFile::grant`].
    pub fn pid(self) -> u32 {
        self.pid
    }

    /// Waits for its end.
    #[track_caller]
    pub fn join(self) -> Ticket<Ended> {
        Ticket::new("join", unsafe { raw::join(self.pid as i32) }, ended, 0)
    }
}

fn ended(bytes: &[u8], _: usize) -> Option<Ended> {
    let value = msgpack::decode(bytes).ok()?;
    let code = i32::try_from(value.get("code")?.as_i64()?).ok()?;
    Some(Ended { code, output: value.get("output")?.as_bytes()?.to_vec() })
}

fn bytes(bytes: &[u8], _: usize) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

fn nothing(bytes: &[u8], _: usize) -> Option<()> {
    bytes.is_empty().then_some(())
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(<[u8; 4]>::try_from(bytes).ok()?))
}
