//! Answers: MessagePack frames `[[number, status, value], ...]`, as many in one message as fit.
//!
//! `status` is 0 for the last part of a result, 1 for a part that more follow, and minus an errno for
//! an error, whose value is its words.

use symphony::msgpack::Writer;
use symphony::{raw, Errno};

/// Bytes of one message: what a run may send without asking the server for memory.
const MESSAGE_BYTES: usize = 16 << 10;
/// Bytes of an answer beside its value, at most, and of a frame's own head.
const HEAD_BYTES: usize = 32;
/// Bytes of a result in one answer; a longer result comes in several.
const PART_BYTES: usize = MESSAGE_BYTES - 2 * HEAD_BYTES;

const LAST: i64 = 0;
const PART: i64 = 1;

/// A value of an answer.
pub enum Value<'a> {
    Nothing,
    Number(i64),
    Bytes(&'a [u8]),
}

/// The answers that were not sent yet.
#[derive(Default)]
pub struct Replies {
    out: Writer,
    count: u32,
    /// The client cannot be told any more.
    pub broken: bool,
}

impl Replies {
    /// A whole result. Number 0: none is wanted.
    pub fn done(&mut self, number: u64, value: Value<'_>) {
        match value {
            _ if number == 0 => {}
            Value::Nothing => drop(self.begin(number, LAST, 1).nil()),
            Value::Number(n) => drop(self.begin(number, LAST, 9).int(n)),
            Value::Bytes(bytes) => self.bytes(number, bytes, LAST),
        }
    }

    /// A part of a result that more follow.
    pub fn piece(&mut self, number: u64, bytes: &[u8]) {
        self.bytes(number, bytes, PART);
    }

    pub fn failed(&mut self, number: u64, errno: Errno, words: &str) {
        if number != 0 {
            self.told(number, errno, words);
        }
    }

    /// An error, also where no call has a number: number 0 is of the frame as a whole.
    pub fn told(&mut self, number: u64, errno: Errno, words: &str) {
        self.begin(number, -i64::from(errno.number()), words.len()).str(words);
    }

    fn bytes(&mut self, number: u64, bytes: &[u8], status: i64) {
        let mut rest = bytes;
        while rest.len() > PART_BYTES {
            let (part, more) = rest.split_at(PART_BYTES);
            self.begin(number, PART, part.len()).bin(part);
            rest = more;
        }
        self.begin(number, status, rest.len()).bin(rest);
    }

    fn begin(&mut self, number: u64, status: i64, size: usize) -> &mut Writer {
        if self.out.bytes().len() + size + 2 * HEAD_BYTES > MESSAGE_BYTES {
            self.flush();
        }
        self.count += 1;
        self.out.array(3).uint(number).int(status)
    }

    /// Sends what there is. It suspends while the client reads slowly.
    pub fn flush(&mut self) {
        if self.count == 0 {
            return;
        }
        let mut head = Writer::new();
        head.array(self.count as usize);
        let mut frame = head.into_bytes();
        frame.extend_from_slice(self.out.bytes());
        self.broken |= unsafe { raw::send(frame.as_ptr(), frame.len()) } < 0;
        self.clear();
    }

    /// Drops what was not sent.
    pub fn clear(&mut self) {
        self.out = Writer::new();
        self.count = 0;
    }
}
