//! The client's calls that are under way: their tickets, and what comes of them.

use crate::replies::{Replies, Value};
use symphony::{raw, Errno};

/// Calls that a client may have under way.
pub const CALLS_MAX: usize = 4_096;
/// After a wait, tickets are tried until so many in a row were not ready.
const MISSES_MAX: usize = 8;
/// Bytes for a result; a longer one takes a second call.
const ROOM_BYTES: usize = 16 << 10;

/// What a ticket gives.
#[derive(Clone, Copy, PartialEq)]
pub enum Gives {
    /// One result.
    Whole,
    /// The same, of a call whose errors have words.
    Worded,
    /// Pieces, until an empty one.
    Pieces,
}

/// The tickets. The first is the one for the client's next frame.
pub struct Pending {
    tickets: Vec<i32>,
    calls: Vec<(u64, Gives)>,
    room: Vec<u8>,
}

/// What is known of a ticket that is tried.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Ready,
    Nothing,
    /// Of some ticket EAGAIN was the work's error: it is freed, and was taken for "not ready".
    OneIsGone,
}

/// What came of trying a ticket.
enum Tried {
    Missed,
    Going,
    Ended,
}

impl Pending {
    pub fn new(frames: i32) -> Pending {
        let room = vec![0; ROOM_BYTES];
        Pending { tickets: vec![frames], calls: vec![(0, Gives::Whole)], room }
    }

    /// The ticket for the client's next frame from now on.
    pub fn set_frames(&mut self, ticket: i32) {
        self.tickets[0] = ticket;
    }

    pub fn frames(&self) -> i32 {
        self.tickets[0]
    }

    pub fn full(&self) -> bool {
        self.tickets.len() > CALLS_MAX
    }

    pub fn add(&mut self, number: u64, ticket: i32, gives: Gives) {
        self.tickets.push(ticket);
        self.calls.push((number, gives));
    }

    /// Drops the work of a call; one that has ended needs nothing.
    pub fn cancel(&mut self, number: u64) {
        if let Some(at) = self.calls[1..].iter().position(|(known, _)| *known == number) {
            self.cancel_at(at + 1);
        }
    }

    /// Drops all work.
    pub fn cancel_all(&mut self) {
        while self.tickets.len() > 1 {
            self.cancel_at(self.tickets.len() - 1);
        }
    }

    fn cancel_at(&mut self, at: usize) {
        self.calls.remove(at);
        // An errno would say that the work has ended.
        let _ = unsafe { raw::cancel(self.tickets.remove(at)) };
    }

    /// Waits until a ticket is ready, and takes the results that are. Returns whether the client's next
    /// frame is there.
    pub fn wait(&mut self, replies: &mut Replies) -> bool {
        let (tickets, count) = (self.tickets.as_ptr(), self.tickets.len());
        let first = unsafe { raw::wait(tickets, count, -1) };
        match usize::try_from(first) {
            Ok(0) => return true,
            Ok(first) => self.take_ready(first, Known::Nothing, replies),
            Err(_) => self.take_ready(1, Known::OneIsGone, replies),
        }
        false
    }

    fn take_ready(&mut self, first: usize, known: Known, replies: &mut Replies) {
        let (mut at, mut misses) = (first, 0);
        while at < self.tickets.len() && (misses < MISSES_MAX || known == Known::OneIsGone) {
            let known = if at == first && known == Known::Nothing { Known::Ready } else { known };
            match self.take(at, known, replies) {
                Tried::Ended => {
                    self.tickets[at] = 0; // no ticket has this number
                    misses = 0;
                }
                Tried::Going => misses = 0,
                Tried::Missed => misses += 1,
            }
            at += 1;
        }
        self.forget_ended();
        if self.room.len() > ROOM_BYTES {
            self.room = vec![0; ROOM_BYTES];
        }
    }

    fn forget_ended(&mut self) {
        let mut kept = 0;
        for at in 0..self.tickets.len() {
            if self.tickets[at] != 0 {
                self.tickets[kept] = self.tickets[at];
                self.calls[kept] = self.calls[at];
                kept += 1;
            }
        }
        self.tickets.truncate(kept);
        self.calls.truncate(kept);
    }

    fn take(&mut self, at: usize, known: Known, replies: &mut Replies) -> Tried {
        let (number, gives) = self.calls[at];
        let mut length = self.take_once(at);
        if length > self.room.len() as i32 {
            self.room.resize(length as usize, 0);
            length = self.take_once(at);
        }
        if length < 0 {
            let errno = match Errno::new(length.wrapping_neg()) {
                Errno::EAGAIN if known != Known::Ready => return Tried::Missed,
                Errno::EBADF if known == Known::OneIsGone => Errno::EAGAIN,
                errno => errno,
            };
            let words = if gives == Gives::Worded { last_error() } else { String::new() };
            replies.failed(number, errno, &words);
            return Tried::Ended;
        }
        let bytes = &self.room[..length as usize];
        if gives == Gives::Pieces && length > 0 {
            replies.piece(number, bytes);
            return Tried::Going;
        }
        replies.done(number, Value::Bytes(bytes));
        Tried::Ended
    }

    fn take_once(&mut self, at: usize) -> i32 {
        unsafe { raw::take(self.tickets[at], self.room.as_mut_ptr(), self.room.len()) }
    }
}

/// The words of the last call that failed and has any.
pub fn last_error() -> String {
    let mut words = vec![0; 1024];
    let length = unsafe { raw::last_error(words.as_mut_ptr(), words.len()) };
    words.truncate(length.max(0) as usize);
    String::from_utf8_lossy(&words).into_owned()
}
