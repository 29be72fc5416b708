//! Scores: how likely the model is to continue one text with another.

use crate::calls;
use crate::failure::Failure;
use crate::passes::Passes;
use crate::tasks::{bad_job, ids, Limits};
use crate::wire::Wire;
use symphony::msgpack::Writer;
use symphony::{model, Value};

/// Tokens of a pass whose log-probabilities are wanted: each place is asked for each of them.
const CHUNK: usize = 128;

/// Tells for each pair [a text, its continuation] the continuation's mean log-probability of a
/// token, an f32; the number of tokens.
pub fn score(job: &Value, mut limits: Limits, wire: &mut Wire) -> Result<usize, Failure> {
    let pairs = job.get("pairs").and_then(Value::as_array).ok_or_else(bad_job)?;
    let prefix = ids(job, "prefix");
    let mut sum = 0.0;
    let mut computed = 0;
    // The owner of a pass: its number of scored tokens, and those of the pair with its last pass.
    let mut passes = Passes::new(|(scored, all): (usize, Option<usize>), chances: &[u8]| {
        // Of place i, the i-th of the tokens that were asked for is the one that comes.
        for own in chances.chunks_exact(4).step_by(scored + 1) {
            sum += f64::from(f32::from_le_bytes([own[0], own[1], own[2], own[3]]));
        }
        if let Some(all) = all {
            wire.data(&((sum / all as f64) as f32).to_le_bytes());
            sum = 0.0;
        }
        Ok(())
    });
    for pair in pairs {
        let (before, after) = match pair.as_array() {
            Some([Value::Str(before), Value::Str(after)]) => (before, after),
            _ => return Err(bad_job()),
        };
        let begin = [&prefix[..], &model::tokenize(before)?].concat();
        let text = [&begin[..], &model::tokenize(after)?].concat();
        computed = limits.count(text.len(), "")?;
        if begin.is_empty() || begin.len() == text.len() {
            let message = "a text of the request has no tokens".into();
            return Err(Failure::refused("invalid_prompt", "", message));
        }
        let kv = calls::kv_create()?;
        let (mut start, mut target) = (0, begin.len());
        while target < text.len() {
            let end = (target + CHUNK).min(text.len());
            let scored = end - target;
            let options = of(target - 1 - start, &text[target..end]);
            let all = if end == text.len() { Some(text.len() - begin.len()) } else { None };
            let bytes = 4 * scored * scored;
            let last = end == text.len();
            passes.start(kv, &text[start..end - 1], &options, bytes, last, (scored, all))?;
            start = end - 1;
            target = end;
        }
    }
    passes.finish()?;
    Ok(computed)
}

/// The options of a pass that asks as many places, from this one on, for these tokens.
fn of(place: usize, tokens: &[u32]) -> Vec<u8> {
    let mut out = Writer::new();
    out.map(2).str("at").array(tokens.len());
    (0..tokens.len()).fold(&mut out, |out, i| out.uint((place + i) as u64));
    out.str("get").map(1).str("of").array(tokens.len());
    tokens.iter().fold(&mut out, |out, token| out.uint(u64::from(*token)));
    out.into_bytes()
}
