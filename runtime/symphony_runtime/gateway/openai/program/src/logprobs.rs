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
