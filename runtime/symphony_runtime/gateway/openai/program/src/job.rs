//! What the gateway asks for: one msgpack map, checked there and so believed here.

use crate::calls;
use crate::channels::Format;
use crate::conversation;
use crate::failure::Failure;
use symphony::msgpack::Writer;
use symphony::{model, Errno, Error, Value};

/// Between two attempts to have a grammar compiled: the first pause and the longest.
const PAUSE_MS: (i64, i64) = (10, 250);

pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// msgpack messages, as `chat` takes them.
    Messages(Vec<u8>),
    /// A msgpack conversation, as `chat_with` takes it.
    Conversation(Vec<u8>),
}

impl Prompt {
    /// The prompt's tokens; those of a text come after `prefix`.
    pub fn tokens(&self, prefix: &[u32]) -> Result<Vec<u32>, Failure> {
        Ok(match self {
            Prompt::Text(text) if prefix.is_empty() => model::tokenize(text)?,
            Prompt::Text(text) => [prefix, &model::tokenize(text)?].concat(),
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Messages(messages) => calls::chat(messages)?,
            Prompt::Conversation(conversation) => conversation::tokens(conversation)?,
        })
    }
}

/// How tokens are drawn; `None` in the job: always the best one.
pub struct Sampling {
    pub temperature: f32,
    pub top_k: u64,
    pub top_p: f32,
    pub min_p: f32,
    pub seed: Option<u64>,
}

pub struct Job {
    pub prompts: Vec<Prompt>,
    /// The adapter that computes the answers; empty: none.
    pub adapter: String,
    /// Tokens that the model's tokenizer puts before a text.
    pub prefix: Vec<u32>,
    /// Tokens behind every prompt: what is to follow the answer, and where the answer begins.
    pub after: Vec<u32>,
    /// Answers to each prompt, and how many of them are told.
    pub best_of: usize,
    pub n: usize,
    /// Tokens of an answer; `None`: as many as fit.
    pub max: Option<usize>,
    /// Where `max` is left out: at most so many.
    pub most: usize,
    pub min: usize,
    pub context: usize,
    /// What the run may compute, and hold as KV entries: its tenant's limits of these names.
    pub tokens: usize,
    pub kv_tokens: usize,
    pub sampling: Option<Sampling>,
    pub presence: f32,
    pub frequency: f32,
    /// What divides the logits of tokens that have occurred; 1: nothing. `vocab`: how many there are.
    pub repetition: f32,
    pub vocab: usize,
    pub bias: Vec<(u32, f32)>,
    pub stop: Vec<Vec<u8>>,
    /// Tokens that end an answer, and are no part of it.
    pub ends: Vec<u32>,
    /// What answers have to be; 0: anything.
    pub constraint: i32,
    pub logprobs: Option<usize>,
    /// The likeliest tokens at each place of a prompt that are told with it.
    pub prompt_logprobs: Option<usize>,
    pub echo: bool,
    /// Whether the client wants the answer's tokens, too.
    pub ids: bool,
    pub stream: bool,
    /// Whether the client is told the prompt's tokens as a stream begins, and where an answer stopped.
    pub tells: bool,
    /// Whether an answer for which `max` leaves too little context has what is left.
    pub clips: bool,
    /// How the model's family writes calls and reasoning, where answers are split.
    pub format: Option<Format>,
    /// Special tokens that are a part of the format, with their texts.
    pub spelt: Vec<(u32, String)>,
    /// Tokens of reasoning at most.
    pub budget: Option<usize>,
    /// Tokens of a draft at most; 0: none are made.
    pub drafts: usize,
}

impl Job {
    pub fn read(value: &Value) -> Option<Result<Job, Failure>> {
        let mut job = Job::of(value)?;
        if let Some(after) = value.get("after").and_then(Value::as_array) {
            match read_after(after)? {
                Ok(tokens) => job.after = tokens,
                Err(error) => return Some(Err(error.into())),
            }
        }
        if let Some(constraint) = value.get("constraint") {
            let patience = value.get("patience_ms").and_then(Value::as_u32).unwrap_or(0);
            match compile(constraint, i64::from(patience))? {
                Ok(handle) => job.constraint = handle,
                Err(failure) => return Some(Err(conversation::explained(failure, &value))),
            }
        }
        Some(Ok(job))
    }

    fn of(value: &Value) -> Option<Job> {
        let count = |key| value.get(key).and_then(Value::as_u32).map(|n| n as usize);
        let flag = |key| value.get(key).and_then(Value::as_bool).unwrap_or(false);
        let list = |key| value.get(key).and_then(Value::as_array).unwrap_or(&[]);
        let limit = |key| {
            value.get(key).and_then(Value::as_u64).map_or(usize::MAX, |n| n.min(1 << 31) as usize)
        };
        let n = count("n").unwrap_or(1);
        Some(Job {
            prompts: read_prompts(value)?,
            adapter: value.get("adapter").and_then(Value::as_str).unwrap_or("").into(),
            prefix: list("prefix").iter().filter_map(Value::as_u32).collect(),
            after: Vec::new(),
            n,
            best_of: count("best_of").unwrap_or(n),
            max: count("max"),
            most: count("most").unwrap_or(usize::MAX),
            min: count("min").unwrap_or(0),
            context: count("context")?,
            tokens: limit("tokens"),
            kv_tokens: limit("kv_tokens"),
            sampling: value.get("sample").and_then(read_sampling),
            presence: number(value, "presence", 0.0),
            frequency: number(value, "frequency", 0.0),
            repetition: number(value, "repetition", 1.0),
            vocab: count("vocab").unwrap_or(0),
            bias: value.get("bias").map_or(Some(Vec::new()), read_bias)?,
            stop: list("stop").iter().filter_map(Value::as_bytes).map(<[u8]>::to_vec).collect(),
            ends: list("ends").iter().filter_map(Value::as_u32).collect(),
            constraint: 0,
            logprobs: count("logprobs"),
            prompt_logprobs: count("prompt_logprobs"),
            echo: flag("echo"),
            ids: flag("ids"),
            stream: flag("stream"),
            tells: flag("tells"),
            clips: flag("clips"),
            format: Format::of(value),
            spelt: value.get("spelt").and_then(conversation::read_spelt).unwrap_or_default(),
            budget: count("budget"),
            drafts: count("drafts").unwrap_or(0),
        })
    }

    /// Whether the options of each pass depend on the tokens before it.
    pub fn penalizes(&self) -> bool {
        self.biases_seen() || self.repeats()
    }

    /// Whether the answer may be drafted: it is the only one, and its passes have the same options.
    /// Several answers fill a pass without drafts.
    pub fn may_draft(&self) -> bool {
        let single = self.prompts.len() == 1 && self.best_of == 1;
        self.drafts > 0 && single && self.constraint == 0 && !self.penalizes()
    }

    /// Whether tokens of the answer are penalized by how often they have occurred.
    pub fn biases_seen(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    /// Whether tokens that have occurred are penalized, the prompt's included.
    pub fn repeats(&self) -> bool {
        self.repetition != 1.0
    }

    /// Whether the prompt's own tokens are scored.
    pub fn scores(&self) -> bool {
        self.echoes_scores() || self.prompt_logprobs.is_some()
    }

    /// Whether an answer begins with them.
    pub fn echoes_scores(&self) -> bool {
        self.echo && self.logprobs.is_some()
    }

    /// Whether text is looked at as it grows, not at the end alone.
    pub fn watches(&self) -> bool {
        self.stream
            || !self.stop.is_empty()
            || self.logprobs.is_some()
            || self.format.as_ref().map_or(false, Format::single)
    }

    /// Bytes of one token in a result.
    pub fn record_bytes(&self) -> usize {
        8 * (1 + self.logprobs.unwrap_or(0))
    }

    /// Writes the option `get`; the `branch`-th answer to a prompt has a seed of its own. `drawn` is
    /// for a job without one.
    pub fn write_get(&self, branch: usize, drawn: Option<u64>, out: &mut Writer) {
        out.str("get");
        let sampling = match &self.sampling {
            None => {
                out.str("argmax");
                return;
            }
            Some(sampling) => sampling,
        };
        let seed = sampling.seed.or(drawn);
        out.map(1).str("sample").map(4 + usize::from(seed.is_some()));
        out.str("temperature").f32(sampling.temperature).str("top_k").uint(sampling.top_k);
        out.str("top_p").f32(sampling.top_p).str("min_p").f32(sampling.min_p);
        if let Some(seed) = seed {
            out.str("seed").uint(seed.wrapping_add(branch as u64));
        }
    }
}

/// The handle of [kind, text, "tools", "format" (it came as `response_format`) or "guided"].
fn compile(value: &Value, patience_ms: i64) -> Option<Result<i32, Failure>> {
    let (kind, text, origin) = match value.as_array()? {
        [kind, text, origin] => (kind.as_u32()?, text.as_bytes()?, origin.as_str()?),
        _ => return None,
    };
    let param = match kind {
        _ if origin == "tools" => "tools",
        _ if origin == "format" => "response_format",
        0 => "guided_json",
        1 => "guided_regex",
        _ => "guided_grammar",
    };
    let made = constraint(kind as i32, text, patience_ms);
    Some(made.map_err(|(error, words)| match error.errno {
        Errno::EINVAL | Errno::EFBIG => Failure::refused("invalid_schema", param, words),
        Errno::EAGAIN => {
            let message = format!("too many grammars of this tenant: {}; try again later", words);
            Failure { status: 503, code: "compilers_busy", param, message }
        }
        Errno::EDQUOT => {
            let message = format!("too many grammars of this tenant: {}", words);
            Failure { status: 429, code: "over_quota", param, message }
        }
        _ => Failure::from(error),
    }))
}

/// A compiled grammar; while too many of the tenant's wait to be compiled it tries again.
pub fn constraint(kind: i32, text: &[u8], patience_ms: i64) -> Result<i32, (Error, String)> {
    let (mut pause, mut left) = (PAUSE_MS.0, patience_ms);
    loop {
        match calls::constraint(kind, text) {
            Err((error, _)) if error.errno == Errno::EAGAIN && left > 0 => {
                calls::sleep(pause).map_err(|error| (error, String::new()))?;
                left -= pause;
                pause = PAUSE_MS.1.min(2 * pause);
            }
            made => return made,
        }
    }
}

pub fn read_prompts(value: &Value) -> Option<Vec<Prompt>> {
    let prompt = |value: &Value| match value {
        Value::Str(text) => Some(Prompt::Text(text.clone())),
        Value::Bin(bytes) => {
            let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            Some(Prompt::Tokens(bytes.chunks_exact(4).map(word).collect()))
        }
        _ => None,
    };
    if let Some(conversation) = value.get("conversation") {
        return Some(vec![Prompt::Conversation(conversation.as_bytes()?.to_vec())]);
    }
    match value.get("messages") {
        Some(messages) => Some(vec![Prompt::Messages(messages.as_bytes()?.to_vec())]),
        None => value.get("prompts")?.as_array()?.iter().map(prompt).collect(),
    }
}

/// The tokens of [id, text, id].
fn read_after(after: &[Value]) -> Option<symphony::Result<Vec<u32>>> {
    let (begin, text, end) = match after {
        [begin, Value::Str(text), end] => (begin.as_u32()?, text, end.as_u32()?),
        _ => return None,
    };
    Some(model::tokenize(text).map(|tokens| [&[begin][..], &tokens, &[end]].concat()))
}

fn read_sampling(value: &Value) -> Option<Sampling> {
    value.as_map()?;
    Some(Sampling {
        temperature: number(value, "temperature", 1.0),
        top_k: value.get("top_k").and_then(Value::as_u64).unwrap_or(0),
        top_p: number(value, "top_p", 1.0),
        min_p: number(value, "min_p", 0.0),
        seed: value.get("seed").and_then(Value::as_u64),
    })
}

fn read_bias(value: &Value) -> Option<Vec<(u32, f32)>> {
    let pair = |(k, v): &(Value, Value)| Some((k.as_u32()?, v.as_f64()? as f32));
    value.as_map()?.iter().map(pair).collect()
}

fn number(value: &Value, key: &str, default: f32) -> f32 {
    value.get(key).and_then(Value::as_f64).map_or(default, |x| x as f32)
}
