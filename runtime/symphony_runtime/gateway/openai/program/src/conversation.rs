//! What conversations with tools and reasoning need beyond a prompt and its answers.

use crate::calls;
use crate::failure::Failure;
use crate::job::{self, Job};
use symphony::{model, Errno, Value};

/// Tokens at a prompt's end in which reasoning may begin.
const TAIL: usize = 16;

/// The tokens of a msgpack conversation.
pub fn tokens(conversation: &[u8]) -> Result<Vec<u32>, Failure> {
    calls::chat_with(conversation).map_err(|(error, words)| match error.errno {
        Errno::EINVAL if !words.is_empty() => {
            let message = format!("the model's chat template refuses the conversation: {}", words);
            Failure::refused("invalid_messages", "messages", message)
        }
        _ => Failure::from(error),
    })
}

/// Whether a prompt ends within reasoning. An answer that has to fit a constraint does not reason,
/// nor one without tokens for it: its prompt ends the reasoning.
pub fn begin_answer(job: &Job, prompt: &mut Vec<u32>) -> Result<bool, Failure> {
    let format = match &job.format {
        Some(format) if format.think_end().is_some() => format,
        _ => return Ok(false),
    };
    let mut tail = Vec::new();
    spell(&prompt[prompt.len().saturating_sub(TAIL)..], job, &mut tail)?;
    if !format.thinks_after(&String::from_utf8_lossy(&tail)) {
        return Ok(false);
    }
    if job.constraint == 0 && job.budget != Some(0) {
        return Ok(true);
    }
    prompt.extend(reasoning_end(job)?);
    Ok(false)
}

/// The tokens that end reasoning.
pub fn reasoning_end(job: &Job) -> Result<Vec<u32>, Failure> {
    let end = job.format.as_ref().and_then(|format| format.think_end()).unwrap_or("");
    let mut tokens = model::tokenize("\n")?;
    match job.spelt.iter().find(|(_, text)| text == end) {
        Some((token, _)) => tokens.push(*token),
        None => tokens.extend(model::tokenize(end)?),
    }
    tokens.extend(model::tokenize("\n\n")?);
    Ok(tokens)
}

/// Appends the tokens' bytes to `out`; special tokens of the format are spelt.
pub fn spell(tokens: &[u32], job: &Job, out: &mut Vec<u8>) -> symphony::Result<()> {
    if job.spelt.is_empty() {
        return calls::detokenize(tokens, out);
    }
    let spelling = |token: &u32| job.spelt.iter().find(|(each, _)| each == token);
    let mut rest = tokens;
    while let Some(at) = rest.iter().position(|token| spelling(token).is_some()) {
        calls::detokenize(&rest[..at], out)?;
        out.extend(spelling(&rest[at]).map_or(&[][..], |(_, text)| text.as_bytes()));
        rest = &rest[at + 1..];
    }
    calls::detokenize(rest, out)
}

pub fn read_spelt(value: &Value) -> Option<Vec<(u32, String)>> {
    let pair = |(k, v): &(Value, Value)| Some((k.as_u32()?, v.as_str()?.into()));
    value.as_map()?.iter().map(pair).collect()
}

/// The failure of a constraint made of several schemas, with the one that is wrong.
///
/// `schemas` of the job are [name, JSON schema] each.
pub fn explained(failure: Failure, job: &Value) -> Failure {
    if failure.status != 400 {
        return failure;
    }
    let schemas = job.get("schemas").and_then(Value::as_array).unwrap_or(&[]);
    for pair in schemas {
        if let Some([Value::Str(name), schema]) = pair.as_array() {
            if let Err((error, words)) = job::constraint(0, schema.as_bytes().unwrap_or(b""), 0) {
                if matches!(error.errno, Errno::EINVAL | Errno::EFBIG) {
                    return Failure { message: format!("{}: {}", name, words), ..failure };
                }
            }
        }
    }
    failure
}
