//! Passes over many texts, as many under way as a budget allows.

use crate::calls;
use crate::failure::Failure;
use std::collections::VecDeque;

/// What the passes under way may compute, and promise as results, before the oldest is waited for.
const TOKENS: usize = 8 << 10;
const BYTES: usize = 8 << 20;

struct Pass<T> {
    ticket: i32,
    tokens: usize,
    bytes: usize,
    /// The file, if nothing follows on it.
    ended: Option<i32>,
    owner: T,
}

/// Results are given to `take` with their passes' owners, in the order of the passes.
pub struct Passes<T, F: FnMut(T, &[u8]) -> Result<(), Failure>> {
    under_way: VecDeque<Pass<T>>,
    tokens: usize,
    bytes: usize,
    room: Vec<u8>,
    take: F,
}

impl<T, F: FnMut(T, &[u8]) -> Result<(), Failure>> Passes<T, F> {
    pub fn new(take: F) -> Passes<T, F> {
        Passes { under_way: VecDeque::new(), tokens: 0, bytes: 0, room: Vec::new(), take }
    }

    /// Starts a pass with a result of so many bytes; `last`: the file is closed behind it.
    pub fn start(
        &mut self,
        kv: i32,
        tokens: &[u32],
        options: &[u8],
        bytes: usize,
        last: bool,
        owner: T,
    ) -> Result<(), Failure> {
        while !self.under_way.is_empty()
            && (self.tokens + tokens.len() > TOKENS || self.bytes + bytes > BYTES)
        {
            self.finish_one()?;
        }
        let ticket = calls::pred(kv, tokens, options)?;
        self.tokens += tokens.len();
        self.bytes += bytes;
        let ended = if last { Some(kv) } else { None };
        self.under_way.push_back(Pass { ticket, tokens: tokens.len(), bytes, ended, owner });
        Ok(())
    }

    /// Waits for the passes that are left.
    pub fn finish(&mut self) -> Result<(), Failure> {
        while !self.under_way.is_empty() {
            self.finish_one()?;
        }
        Ok(())
    }

    fn finish_one(&mut self) -> Result<(), Failure> {
        let pass = match self.under_way.pop_front() {
            Some(pass) => pass,
            None => return Ok(()),
        };
        if self.room.len() < pass.bytes {
            self.room.resize(pass.bytes, 0);
        }
        let length = calls::claim(pass.ticket, &mut self.room)?;
        self.tokens -= pass.tokens;
        self.bytes -= pass.bytes;
        if let Some(kv) = pass.ended {
            calls::kv_close(kv)?;
        }
        (self.take)(pass.owner, &self.room[..length])
    }
}
