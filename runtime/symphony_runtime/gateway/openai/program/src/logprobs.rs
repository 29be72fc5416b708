//! Log-probabilities of an answer's tokens, as the gateway gets them.

use crate::calls;
use symphony::msgpack::Writer;

/// One token's.
pub struct Entry {
    /// Where its text begins in the answer's bytes.
    pub start: usize,
    pub token: u32,
    /// Absent for a prompt's first token.
    pub logprob: Option<f32>,
    pub top: Vec<(u32, f32)>,
}

/// A prompt's entries as one list: [[id, bytes, log-probability or nil, [[id, bytes,
/// log-probability], ...]], ...], with so many of the likeliest tokens.
pub fn pack_prompt(entries: &[Entry], count: usize) -> symphony::Result<Vec<u8>> {
    let mut out = Writer::new();
    let mut bytes = Vec::new();
    out.array(entries.len());
    for entry in entries {
        out.array(4);
        put_token(&mut out, entry.token, &mut bytes)?;
        match entry.logprob {
            Some(logprob) => out.f32(logprob),
            None => out.nil(),
        };
        let top = &entry.top[..count.min(entry.top.len())];
        out.array(top.len());
        for (token, logprob) in top {
            out.array(3);
            put_token(&mut out, *token, &mut bytes)?;
            out.f32(*logprob);
        }
    }
    Ok(out.into_bytes())
}

fn put_token(out: &mut Writer, token: u32, bytes: &mut Vec<u8>) -> symphony::Result<()> {
    bytes.clear();
    calls::detokenize(&[token], bytes)?;
    out.uint(u64::from(token)).bin(bytes);
    Ok(())
}

/// Those that are to be told.
#[derive(Default)]
pub struct Entries {
    count: usize,
    packed: Writer,
}

impl Entries {
    pub fn push(&mut self, entry: &Entry) -> symphony::Result<()> {
        self.count += 1;
        self.packed.array(3);
        self.token(entry.token)?;
        match entry.logprob {
            Some(logprob) => self.packed.f32(logprob),
            None => self.packed.nil(),
        };
        self.packed.array(entry.top.len());
        for (token, logprob) in &entry.top {
            self.packed.array(2);
            self.token(*token)?;
            self.packed.f32(*logprob);
        }
        Ok(())
    }

    /// All of them as one list.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut list = Writer::new();
        list.array(self.count);
        let mut bytes = list.into_bytes();
        bytes.extend_from_slice(self.packed.bytes());
        bytes
    }

    fn token(&mut self, token: u32) -> symphony::Result<()> {
        let mut bytes = Vec::new();
        calls::detokenize(&[token], &mut bytes)?;
        self.packed.bin(&bytes);
        Ok(())
    }
}
