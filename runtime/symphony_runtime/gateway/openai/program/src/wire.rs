//! What the gateway is told: records `[length u32][kind u8][...]`, a step's in one message.
//!
//! - `p` piece: choice u16, finish u8, then its text
//! - `l` piece with log-probabilities: choice u16, finish u8, the text's length u32, its text, then
//!   msgpack [[bytes, log-probability or nil, [[bytes, log-probability], ...]], ...]
//! - `t` tokens of a choice, before the piece with its end: choice u16, then u32 each
//! - `r` reasoning: choice u16, then its text
//! - `c` a call of a tool begins: choice u16, the call's number u16, then its name
//! - `a` more of a call's arguments: choice u16, the call's number u16, then the text
//! - `s` the text that a choice stopped at, before the piece with its end: choice u16, then the text
//! - `b` a stream begins, before all else: prompt and cached tokens, u32 each
//! - `q` a prompt's log-probabilities, before all pieces: its first choice u16, its choices u16, then
//!   msgpack [[id, bytes, log-probability or nil, [[id, bytes, log-probability], ...]], ...]
//! - `d` data of a task that generates nothing, which go on in the next record
//! - `u` usage, the last one: prompt, cached and completion tokens, and those of them that are
//!   reasoning; then drafted tokens and those of them that were right, u32 each
//! - `e` failure, the last one: msgpack {status, code, param, message}

use crate::failure::Failure;
use symphony::msgpack::Writer;
use symphony::process;

/// Why a choice has ended, or that it goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Finish {
    Stop = 0,
    Length = 1,
    ToolCalls = 2,
    Going = 255,
}

#[derive(Default)]
pub struct Wire {
    out: Vec<u8>,
}

impl Wire {
    pub fn piece(&mut self, choice: u16, finish: Finish, text: &str) {
        self.begin(b'p', choice, finish, text.len());
        self.out.extend_from_slice(text.as_bytes());
    }

    pub fn piece_with(&mut self, choice: u16, finish: Finish, text: &str, logprobs: &[u8]) {
        self.begin(b'l', choice, finish, 4 + text.len() + logprobs.len());
        self.out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(logprobs);
    }

    pub fn tokens(&mut self, choice: u16, tokens: &[u32]) {
        self.head(b't', 2 + 4 * tokens.len());
        self.out.extend_from_slice(&choice.to_le_bytes());
        self.out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    }

    /// A part of an answer that is no content: of the kind `r`, `c`, `a` or `s`.
    pub fn part(&mut self, kind: u8, choice: u16, call: Option<u16>, text: &str) {
        self.head(kind, 2 + 2 * usize::from(call.is_some()) + text.len());
        self.out.extend_from_slice(&choice.to_le_bytes());
        call.iter().for_each(|call| self.out.extend_from_slice(&call.to_le_bytes()));
        self.out.extend_from_slice(text.as_bytes());
    }

    pub fn prompt(&mut self, first: u16, count: u16, entries: &[u8]) {
        self.head(b'q', 4 + entries.len());
        self.out.extend_from_slice(&first.to_le_bytes());
        self.out.extend_from_slice(&count.to_le_bytes());
        self.out.extend_from_slice(entries);
    }

    pub fn data(&mut self, bytes: &[u8]) {
        self.head(b'd', bytes.len());
        self.out.extend_from_slice(bytes);
    }

    /// Bytes that are not sent.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    pub fn begun(&mut self, prompt: usize, cached: usize) {
        self.counts(b'b', &[prompt, cached]);
    }

    pub fn usage(&mut self, counts: [usize; 6]) {
        self.counts(b'u', &counts);
    }

    pub fn failure(&mut self, failure: &Failure) {
        let mut map = Writer::new();
        map.map(4).str("status").uint(u64::from(failure.status)).str("code").str(failure.code);
        map.str("param").str(failure.param).str("message").str(&failure.message);
        self.head(b'e', map.bytes().len());
        self.out.extend_from_slice(map.bytes());
    }

    /// Sends what was said since the last time, in messages that are not too long.
    pub fn flush(&mut self) -> symphony::Result<()> {
        const MESSAGE: usize = 1 << 20;
        let outcome = self.out.chunks(MESSAGE).try_for_each(process::send);
        self.out.clear();
        outcome
    }

    fn counts(&mut self, kind: u8, counts: &[usize]) {
        self.head(kind, 4 * counts.len());
        for count in counts {
            self.out.extend_from_slice(&(*count as u32).to_le_bytes());
        }
    }

    fn begin(&mut self, kind: u8, choice: u16, finish: Finish, length: usize) {
        self.head(kind, 3 + length);
        self.out.extend_from_slice(&choice.to_le_bytes());
        self.out.push(finish as u8);
    }

    fn head(&mut self, kind: u8, length: usize) {
        self.out.extend_from_slice(&(1 + length as u32).to_le_bytes());
        self.out.push(kind);
    }
}
