//! The program that makes the system calls of attached programs: an ordinary LIP that ships with the
//! server.
//!
//! An attached program runs at its client, in CPython say. It sends frames of calls; this program makes
//! them and answers as they complete, all answers of a pass in one frame. What a call may do, and how
//! much of it, is the ABI's: limits, rights and fairness hold as for any program, because this is one.
//! docs/reference/attached-protocol.md is the contract with clients.

mod calls;
mod files;
mod frame;
mod pending;
mod replies;

use calls::{Failed, Given};
use files::Files;
use frame::{Call, Frame, Malformed};
use pending::{Gives, Pending, CALLS_MAX};
use replies::{Replies, Value};
use symphony::msgpack::Writer;
use symphony::process::{self, Level};
use symphony::{raw, Errno};

symphony::entry!("lip_main", run);

/// The protocol's version.
const VERSION: i64 = 1;
/// Bytes for a frame; a longer one takes a second call.
const ROOM_BYTES: usize = 16 << 10;

/// Why the program ends.
enum End {
    /// The client has closed, or said so.
    Closed,
    /// The client is none of this protocol.
    Broken(Malformed),
}

fn run() -> i32 {
    let mut host = Host {
        files: Files::default(),
        pending: Pending::new(unsafe { raw::recv() }),
        replies: Replies::default(),
        room: vec![0; ROOM_BYTES],
        greeted: false,
    };
    let end = loop {
        if host.pending.wait(&mut host.replies) {
            if let Err(end) = host.take_frame() {
                break end;
            }
        }
        host.replies.flush();
        if host.replies.broken {
            return 1;
        }
    };
    let code = match end {
        End::Closed => 0,
        End::Broken(malformed) => {
            let words = malformed.to_string();
            process::log(Level::Error, &words);
            host.replies.told(0, Errno::EINVAL, &words);
            1
        }
    };
    host.replies.flush();
    code
}

struct Host {
    files: Files,
    pending: Pending,
    replies: Replies,
    /// For the client's frames.
    room: Vec<u8>,
    /// The client has said which version it speaks.
    greeted: bool,
}

impl Host {
    /// Makes the calls of the client's next frame, which has come.
    fn take_frame(&mut self) -> Result<(), End> {
        let length = take(self.pending.frames(), &mut self.room);
        if length < 0 {
            return Err(End::Closed);
        }
        // More frames may have come: the next wait says so.
        let frames = unsafe { raw::recv() };
        if frames < 0 {
            return Err(End::Closed); // the run may have no ticket more
        }
        self.pending.set_frames(frames);
        let room = std::mem::take(&mut self.room);
        let read = self.read_frame(&room[..length as usize]);
        self.room = if room.len() > ROOM_BYTES { vec![0; ROOM_BYTES] } else { room };
        read
    }

    fn read_frame(&mut self, bytes: &[u8]) -> Result<(), End> {
        let mut frame = Frame::new(bytes).map_err(End::Broken)?;
        while let Some(mut call) = frame.next().map_err(End::Broken)? {
            match call.name {
                "exit" => return Err(End::Closed),
                "cancel" => self.cancel(&mut call),
                "hello" => self.greet(&mut call),
                _ => self.perform(&mut call),
            }
        }
        Ok(())
    }

    fn perform(&mut self, call: &mut Call<'_>) {
        let outcome = match self.refusal() {
            Some(failed) => Err(failed),
            None => calls::perform(call, &mut self.files),
        };
        match outcome {
            Ok(Given::Nothing) => self.replies.done(call.number, Value::Nothing),
            Ok(Given::Number(n)) => self.replies.done(call.number, Value::Number(n)),
            Ok(Given::Bytes(bytes)) => self.replies.done(call.number, Value::Bytes(&bytes)),
            Ok(Given::Started(ticket, gives)) => self.start(call, ticket, gives),
            Err(Failed(errno, words)) => self.replies.failed(call.number, errno, &words),
        }
    }

    fn start(&mut self, call: &Call<'_>, ticket: i32, gives: Gives) {
        if call.number == 0 && gives == Gives::Pieces {
            let _ = unsafe { raw::cancel(ticket) };
            return;
        }
        self.pending.add(call.number, ticket, gives);
    }

    /// Why no call can be made now.
    fn refusal(&self) -> Option<Failed> {
        if !self.greeted {
            return Some(Failed(Errno::EINVAL, "the first call is `hello`".into()));
        }
        if self.pending.full() {
            let words = format!("{} calls are under way, the most that may be", CALLS_MAX);
            return Some(Failed(Errno::EAGAIN, words));
        }
        None
    }

    fn cancel(&mut self, call: &mut Call<'_>) {
        match call.int_or("call", 0, 1, i64::MAX).and_then(|number| call.end().map(|_| number)) {
            Ok(number) => {
                self.pending.cancel(number as u64);
                self.replies.done(call.number, Value::Nothing);
            }
            Err(refused) => self.replies.failed(call.number, Errno::EINVAL, &refused.0),
        }
    }

    /// A client takes the run up: what an earlier one had under way is dropped, its files stay.
    fn greet(&mut self, call: &mut Call<'_>) {
        let asked = call.int_or("version", 0, 0, i64::MAX).and_then(|n| call.end().map(|_| n));
        let version = match asked {
            Ok(version) => version,
            Err(refused) => return self.replies.failed(call.number, Errno::EINVAL, &refused.0),
        };
        if version != VERSION {
            let words = format!("version {} of the protocol; this server has {}", version, VERSION);
            return self.replies.failed(call.number, Errno::ENOSYS, &words);
        }
        self.pending.cancel_all();
        self.replies.clear();
        self.greeted = true;
        let mut out = Writer::new();
        out.map(3).str("version").int(VERSION);
        out.str("calls_max").uint(CALLS_MAX as u64).str("files");
        self.files.list(&mut out);
        self.replies.done(call.number, Value::Bytes(out.bytes()));
    }
}

/// Takes a ticket's result: its length, or minus an errno.
fn take(ticket: i32, room: &mut Vec<u8>) -> i32 {
    let length = unsafe { raw::take(ticket, room.as_mut_ptr(), room.len()) };
    if length <= room.len() as i32 {
        return length;
    }
    room.resize(length as usize, 0);
    unsafe { raw::take(ticket, room.as_mut_ptr(), room.len()) }
}
