//! Jobs that generate nothing: texts as tokens and back, embeddings, scores.

use crate::calls;
use crate::embedding;
use crate::failure::Failure;
use crate::job::{read_prompts, Prompt};
use crate::ranking;
use crate::wire::Wire;
use symphony::msgpack::Writer;
use symphony::Value;

/// Does the job of a name, and tells its data, then the usage.
pub fn serve(task: &str, job: &Value, wire: &mut Wire) -> Result<(), Failure> {
    let limits = Limits::of(job);
    let prompt_tokens = match task {
        "tokenize" => tokenize(job, wire)?,
        "detokenize" => detokenize(job, wire)?,
        "embed" => embedding::embed(job, limits, wire)?,
        "score" => ranking::score(job, limits, wire)?,
        _ => return Err(bad_job()),
    };
    wire.usage([prompt_tokens, 0, 0, 0, 0, 0]);
    Ok(wire.flush()?)
}

pub fn bad_job() -> Failure {
    Failure::refused("bad_job", "", "the job is none".into())
}

/// What a text may have: the model's context and the tenant's limits of a run.
pub struct Limits {
    context: usize,
    tokens: usize,
    kv_tokens: usize,
    computed: usize,
}

impl Limits {
    fn of(job: &Value) -> Limits {
        let limit = |key| {
            job.get(key).and_then(Value::as_u64).map_or(usize::MAX, |n| n.min(1 << 31) as usize)
        };
        Limits {
            context: limit("context"),
            tokens: limit("tokens"),
            kv_tokens: limit("kv_tokens"),
            computed: 0,
        }
    }

    /// Counts a text's tokens, which are to be computed; tokens so far.
    pub fn count(&mut self, tokens: usize, param: &'static str) -> Result<usize, Failure> {
        self.computed += tokens;
        if tokens == 0 {
            let message = "the text has no tokens".into();
            return Err(Failure::refused("invalid_prompt", param, message));
        }
        if tokens > self.context {
            let message =
                format!("the model's context is {} tokens; the text has {}", self.context, tokens);
            return Err(Failure::refused("context_length_exceeded", param, message));
        }
        for (name, count, most) in
            [("kv_tokens", tokens, self.kv_tokens), ("tokens", self.computed, self.tokens)]
        {
            if count > most {
                let message = format!(
                    "{} tokens are to be computed; the tenant's limit `{}` of a run is {}",
                    count, name, most
                );
                return Err(Failure::refused("limit_exceeded", param, message));
            }
        }
        Ok(self.computed)
    }
}

/// The ids in a list of a job.
pub fn ids(job: &Value, key: &str) -> Vec<u32> {
    let list = job.get(key).and_then(Value::as_array).unwrap_or(&[]);
    list.iter().filter_map(Value::as_u32).collect()
}

/// A prompt's tokens; those of a text with what the tokenizer puts before and after it.
pub fn tokens(prompt: &Prompt, prefix: &[u32], suffix: &[u32]) -> Result<Vec<u32>, Failure> {
    let mut tokens = prompt.tokens(prefix)?;
    if let Prompt::Text(_) = prompt {
        tokens.extend_from_slice(suffix);
    }
    Ok(tokens)
}

/// Tells [tokens as u32, the bytes of each or nil].
fn tokenize(job: &Value, wire: &mut Wire) -> Result<usize, Failure> {
    let prompts = read_prompts(job).ok_or_else(bad_job)?;
    let prompt = prompts.first().ok_or_else(bad_job)?;
    let found = tokens(prompt, &ids(job, "prefix"), &ids(job, "suffix"))?;
    let bytes: Vec<u8> = found.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut out = Writer::new();
    out.array(2).bin(&bytes);
    if job.get("texts").and_then(Value::as_bool).unwrap_or(false) {
        out.array(found.len());
        let mut text = Vec::new();
        for token in &found {
            text.clear();
            calls::detokenize(&[*token], &mut text)?;
            out.bin(&text);
        }
    } else {
        out.nil();
    }
    wire.data(out.bytes());
    Ok(found.len())
}

/// Tells the bytes of tokens.
fn detokenize(job: &Value, wire: &mut Wire) -> Result<usize, Failure> {
    let prompts = read_prompts(job).ok_or_else(bad_job)?;
    let mut text = Vec::new();
    let mut count = 0;
    for prompt in &prompts {
        let tokens = prompt.tokens(&[])?;
        count += tokens.len();
        calls::detokenize(&tokens, &mut text)?;
    }
    wire.data(&text);
    Ok(count)
}
