//! Embeddings: the last hidden states of texts, of the last token or the mean of all.

use crate::calls;
use crate::failure::Failure;
use crate::job::read_prompts;
use crate::passes::Passes;
use crate::tasks::{bad_job, ids, tokens, Limits};
use crate::wire::Wire;
use symphony::Value;

const LAST: &[u8] = b"\x81\xa3get\xa6hidden";
const ALL: &[u8] = b"\x82\xa2at\xa3all\xa3get\xa6hidden";
/// Bytes of a pass's hidden states, about.
const PASS_BYTES: usize = 2 << 20;
/// Bytes that are kept before they are sent.
const SENT_BYTES: usize = 256 << 10;

/// Tells a vector for each text, in their order: f32 each; the number of tokens.
pub fn embed(job: &Value, mut limits: Limits, wire: &mut Wire) -> Result<usize, Failure> {
    let prompts = read_prompts(job).ok_or_else(bad_job)?;
    let width = job.get("width").and_then(Value::as_u32).ok_or_else(bad_job)? as usize;
    let mean = job.get("mean").and_then(Value::as_bool).unwrap_or(false);
    let (prefix, suffix) = (ids(job, "prefix"), ids(job, "suffix"));
    let mut sums = vec![0.0; width];
    let mut computed = 0;
    // The owner of a pass: how many tokens a text has, with the text's last pass.
    let mut passes = Passes::new(|count: Option<usize>, states: &[u8]| {
        if !mean {
            wire.data(states);
        } else {
            for state in states.chunks_exact(4 * width) {
                sums.iter_mut().zip(state.chunks_exact(4)).for_each(|(sum, value)| {
                    *sum += f64::from(f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
                });
            }
            if let Some(count) = count {
                let value = |sum: &f64| ((sum / count as f64) as f32).to_le_bytes();
                wire.data(&sums.iter().flat_map(value).collect::<Vec<u8>>());
                sums.iter_mut().for_each(|sum| *sum = 0.0);
            }
        }
        if wire.waiting() > SENT_BYTES {
            wire.flush()?;
        }
        Ok(())
    });
    for prompt in &prompts {
        let text = tokens(prompt, &prefix, &suffix)?;
        computed = limits.count(text.len(), "input")?;
        let kv = calls::kv_create()?;
        if !mean {
            passes.start(kv, &text, LAST, 4 * width, true, None)?;
            continue;
        }
        let step = (PASS_BYTES / (4 * width)).max(1);
        let mut left = text.len();
        for part in text.chunks(step) {
            left -= part.len();
            let count = if left == 0 { Some(text.len()) } else { None };
            passes.start(kv, part, ALL, 4 * width * part.len(), left == 0, count)?;
        }
    }
    passes.finish()?;
    Ok(computed)
}
