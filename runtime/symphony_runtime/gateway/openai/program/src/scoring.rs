//! The log-probabilities of a prompt's own tokens.

use crate::calls;
use crate::failure::Failure;
use crate::logprobs::Entry;
use symphony::msgpack::Writer;

/// Tokens of one pass: each place is asked for each of them.
const CHUNK: usize = 128;

/// Puts all tokens but the last into the file; each token's entry, with so many of the likeliest.
pub fn score(
    kv: i32,
    tokens: &[u32],
    count: usize,
    adapter: &str,
) -> Result<Vec<Entry>, Failure> {
    let mut entries = vec![entry(tokens[0], None)];
    let mut at = 0;
    while at + 1 < tokens.len() {
        let end = (at + CHUNK).min(tokens.len() - 1);
        let (chunk, next) = (&tokens[at..end], &tokens[at + 1..=end]);
        let chances = words(kv, chunk, &calls::adapted(of(next, count == 0), adapter))?;
        // Of place i, the i-th of the tokens that were asked for is the one that came.
        let own = (0..next.len()).map(|i| f32::from_bits(chances[i * next.len() + i]));
        let mut scored: Vec<Entry> =
            next.iter().zip(own).map(|(t, p)| entry(*t, Some(p))).collect();
        if count > 0 {
            let top = words(kv, chunk, &calls::adapted(likeliest(count), adapter))?;
            for (entry, pairs) in scored.iter_mut().zip(top.chunks_exact(2 * count)) {
                entry.top = pairs.chunks_exact(2).map(|p| (p[0], f32::from_bits(p[1]))).collect();
            }
        }
        entries.append(&mut scored);
        at = end;
    }
    Ok(entries)
}

fn entry(token: u32, logprob: Option<f32>) -> Entry {
    Entry { start: 0, token, logprob, top: Vec::new() }
}

/// The options of a pass that asks each place for these tokens.
fn of(tokens: &[u32], keep: bool) -> Vec<u8> {
    let mut out = Writer::new();
    out.map(3).str("at").str("all").str("keep").bool(keep);
    out.str("get").map(1).str("of").array(tokens.len());
    tokens.iter().fold(&mut out, |out, token| out.uint(u64::from(*token)));
    out.into_bytes()
}

/// The options of a pass that asks each place for the likeliest tokens.
fn likeliest(count: usize) -> Vec<u8> {
    let mut out = Writer::new();
    out.map(2).str("at").str("all").str("get").map(1).str("top").uint(count as u64);
    out.into_bytes()
}

fn words(kv: i32, tokens: &[u32], options: &[u8]) -> Result<Vec<u32>, Failure> {
    let ticket = calls::pred(kv, tokens, options)?;
    calls::wait(&[ticket])?;
    let mut room = vec![0; 4 * CHUNK * CHUNK];
    let length = calls::take(ticket, &mut room)?.unwrap_or(0);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(room[..length].chunks_exact(4).map(word).collect())
}
