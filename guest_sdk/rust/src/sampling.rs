//! How text is generated: how each token is chosen, and where the text ends.

use crate::constraint::Constraint;
use crate::error::Result;
use crate::model;
use crate::msgpack::Writer;
use crate::pred::TokenSet;
use alloc::string::String;
use alloc::vec::Vec;

/// How text is generated, by the names of the OpenAI API and vLLM: the one set of parameters of
/// [`Session::reply`](crate::Session::reply), [`KvFile::generate`](crate::KvFile::generate),
/// [`KvFile::stream`](crate::KvFile::stream) and [`Pred::sample`](crate::pred::Pred::sample).
///
/// Without any parameter it is the best token each time, until the model ends the text or its context is full.
///
/// ```
/// use symphony::Sampling;
///
/// let line = Sampling::new().max_tokens(64).stop("\n");
/// let drawn = line.clone().temperature(0.8).top_p(0.95).seed(7);
/// // Branches of one text that draw with one seed would all draw the same.
/// assert_ne!(drawn.branch(1), drawn.branch(2));
/// assert_eq!(line.branch(1), line.branch(2));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "parameters do nothing by themselves"]
pub struct Sampling {
    pub(crate) max_tokens: Option<usize>,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: Option<u64>,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    exact: bool,
    pub(crate) logprobs: u32,
    logit_bias: Vec<(u32, f32)>,
    bias_mask: Option<(TokenSet, f32)>,
    repetition: Option<(TokenSet, f32)>,
    allowed_tokens: Option<TokenSet>,
    constraint: Option<(Constraint, Option<u32>)>,
    share: bool,
    adapter: String,
    lookahead: Option<u32>,
    chunk: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling::new()
    }
}

impl Sampling {
    /// The best token each time, until the model ends the text or its context is full.
    pub fn new() -> Sampling {
        Sampling {
            max_tokens: None,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            exact: false,
            logprobs: 0,
            logit_bias: Vec::new(),
            bias_mask: None,
            repetition: None,
            allowed_tokens: None,
            constraint: None,
            share: false,
            adapter: String::new(),
            lookahead: None,
            chunk: None,
        }
    }

    // --- How a token is chosen ---------------------------------------------------------------------

    /// 0 takes the best token, 1 draws from the model's own distribution; lower is surer of itself.
    pub fn temperature(mut self, temperature: f32) -> Sampling {
        self.temperature = temperature;
        self
    }

    /// Draws from the best so many tokens alone; 0: from all.
    pub fn top_k(mut self, count: u32) -> Sampling {
        self.top_k = count;
        self
    }

    /// Draws from the best tokens alone that together have this probability; 1: from all.
    pub fn top_p(mut self, probability: f32) -> Sampling {
        self.top_p = probability;
        self
    }

    /// Draws from the tokens alone with at least this share of the best one's probability; 0: from all.
    pub fn min_p(mut self, share: f32) -> Sampling {
        self.min_p = share;
        self
    }

    /// Draws the same tokens again, regardless of what else the server computes. Without a seed the
    /// server draws one.
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> Sampling {
        self.seed = seed.into();
        self
    }

    /// Adds finite numbers to the logits of these tokens, in every step.
    pub fn logit_bias(mut self, bias: &[(u32, f32)]) -> Sampling {
        self.logit_bias = bias.to_vec();
        self
    }

    /// Adds a finite number to the logits of all these tokens, in every step.
    pub fn bias_mask(mut self, tokens: TokenSet, value: f32) -> Sampling {
        self.bias_mask = Some((tokens, value));
        self
    }

    /// Divides the positive logits of these tokens by a penalty from 0.001 to 1000, and multiplies
    /// their other logits by it, in every step and before anything is added: above 1 they become less
    /// likely. The server does not put the tokens of the text into the set.
    pub fn repetition_penalty(mut self, tokens: TokenSet, penalty: f32) -> Sampling {
        self.repetition = Some((tokens, penalty));
        self
    }

    /// Leaves only these tokens possible, in every step.
    pub fn allowed_tokens(mut self, tokens: TokenSet) -> Sampling {
        self.allowed_tokens = Some(tokens);
        self
    }

    /// Gives a text of the constraint's, which ends as the constraint says, or where `max_tokens`
    /// cuts it off.
    pub fn constraint(mut self, constraint: &Constraint) -> Sampling {
        self.constraint = Some((constraint.clone(), None));
        self
    }

    /// The same, where the constraint's text begins with this entry of the file.
    pub fn constraint_since(mut self, constraint: &Constraint, since: u32) -> Sampling {
        self.constraint = Some((constraint.clone(), Some(since)));
        self
    }

    // --- Where the text ends -----------------------------------------------------------------------

    /// At most so many tokens.
    pub fn max_tokens(mut self, count: usize) -> Sampling {
        self.max_tokens = Some(count);
        self
    }

    /// Stops before this text, too.
    pub fn stop(mut self, text: impl Into<String>) -> Sampling {
        self.stop.push(text.into());
        self
    }

    /// Stops at these tokens, too. The one that ended the text is no part of it.
    pub fn stop_token_ids(mut self, tokens: &[u32]) -> Sampling {
        self.stop_token_ids.extend_from_slice(tokens);
        self
    }

    /// With `true`, exactly `max_tokens` tokens: neither the model's end of a text nor anything to stop
    /// at counts. For measurements, where lengths have to be equal.
    pub fn exact(mut self, exact: bool) -> Sampling {
        self.exact = exact;
        self
    }

    // --- What is computed --------------------------------------------------------------------------

    /// With `true`, computes once what the prompts of several generations of the tenant begin with,
    /// also when they come together: see [`Pred::share`](crate::pred::Pred::share).
    pub fn share(mut self, share: bool) -> Sampling {
        self.share = share;
        self
    }

    /// Generates with one of the tenant's LoRA adapters, by its name: see
    /// [`Pred::adapter`](crate::pred::Pred::adapter). A [`Session`](crate::session::Session) computes
    /// its prompt with it, too, where the prompt is computed with the reply.
    pub fn adapter(mut self, name: &str) -> Sampling {
        self.adapter = name.into();
        self
    }

    // --- What the program is told, and when --------------------------------------------------------

    /// Tells the best `k` tokens, at most 20, beside each one: see
    /// [`Stream::next_scored`](crate::stream::Stream::next_scored).
    pub fn logprobs(mut self, k: u32) -> Sampling {
        self.logprobs = k;
        self
    }

    /// How many tokens the server may append that the program has not taken; 8 without it. With 0 each
    /// is appended after it was taken.
    pub fn lookahead(mut self, count: u32) -> Sampling {
        self.lookahead = Some(count);
        self
    }

    /// Wakes the program once so many tokens are there, or the last one; at most `lookahead` + 1. A
    /// program that has no use for each token as it comes costs less so.
    pub fn chunk(mut self, count: u32) -> Sampling {
        self.chunk = Some(count);
        self
    }

    /// The same for one of several branches: where there is a seed, each number gives another.
    pub fn branch(&self, number: usize) -> Sampling {
        let mut own = self.clone();
        if let Some(seed) = &mut own.seed {
            // The golden ratio's odd multiple keeps neighbours' seeds far apart.
            *seed = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        own
    }

    // --- For the calls -----------------------------------------------------------------------------

    /// The texts that end it.
    pub(crate) fn stop_texts(&self) -> &[String] {
        if self.exact {
            &[]
        } else {
            &self.stop
        }
    }

    /// The tokens that end it.
    #[track_caller]
    pub(crate) fn stop_tokens(&self) -> Result<Vec<u32>> {
        if self.exact {
            return Ok(Vec::new());
        }
        let mut ends = model::info()?.eos;
        ends.extend_from_slice(&self.stop_token_ids);
        Ok(ends)
    }

    /// The same, to be woken at so many tokens where nothing else is said.
    pub(crate) fn chunked(&self, count: u32) -> Sampling {
        let mut own = self.clone();
        own.chunk = own.chunk.or(Some(count));
        own.lookahead = own.lookahead.or(own.chunk);
        own
    }

    /// Whether tokens are drawn, and not just the best ones taken.
    pub(crate) fn draws(&self) -> bool {
        self.temperature > 0.0
    }

    /// Writes the option `get` of a pass or a generation that draws.
    pub(crate) fn write_get(&self, out: &mut Writer) {
        out.str("get").map(1).str("sample").map(4 + usize::from(self.seed.is_some()));
        out.str("temperature").f32(self.temperature).str("top_k").uint(u64::from(self.top_k));
        out.str("top_p").f32(self.top_p).str("min_p").f32(self.min_p);
        if let Some(seed) = self.seed {
            out.str("seed").uint(seed);
        }
    }

    /// The options of a generation in MessagePack; nothing at all where they are the defaults.
    pub(crate) fn options(&self, stop: &[u32]) -> Vec<u8> {
        let since = matches!(self.constraint, Some((_, Some(_))));
        let given = [
            self.draws(),
            self.max_tokens.is_some(),
            !stop.is_empty(),
            self.lookahead.is_some(),
            self.chunk.is_some(),
            !self.logit_bias.is_empty(),
            self.bias_mask.is_some(),
            self.repetition.is_some(),
            self.allowed_tokens.is_some(),
            self.constraint.is_some(),
            since,
            self.logprobs > 0,
            self.share,
            !self.adapter.is_empty(),
        ];
        let count = given.iter().filter(|given| **given).count();
        let mut out = Writer::new();
        if count == 0 {
            return out.into_bytes();
        }
        out.map(count);
        if self.draws() {
            self.write_get(&mut out);
        }
        if let Some(max) = self.max_tokens {
            out.str("max").uint(max as u64);
        }
        if !stop.is_empty() {
            out.str("stop").array(stop.len());
            stop.iter().fold(&mut out, |out, token| out.uint(u64::from(*token)));
        }
        if let Some(lookahead) = self.lookahead {
            out.str("ahead").uint(u64::from(lookahead));
        }
        if let Some(chunk) = self.chunk {
            out.str("lot").uint(u64::from(chunk));
        }
        let bias_mask = self.bias_mask.as_ref().map(|(tokens, value)| (tokens, *value));
        write_bias(&mut out, &self.logit_bias, bias_mask, self.allowed_tokens.as_ref());
        if let Some((tokens, penalty)) = &self.repetition {
            write_repetition(&mut out, tokens, *penalty);
        }
        if let Some((constraint, since)) = &self.constraint {
            constraint.write(*since, &mut out);
        }
        if self.logprobs > 0 {
            out.str("logprobs").uint(u64::from(self.logprobs));
        }
        if self.share {
            out.str("share").bool(true);
        }
        if !self.adapter.is_empty() {
            out.str("adapter").str(&self.adapter);
        }
        out.into_bytes()
    }
}

/// Writes what makes tokens likelier, less likely or impossible, as far as it is given.
pub(crate) fn write_bias(
    out: &mut Writer,
    bias: &[(u32, f32)],
    bias_mask: Option<(&TokenSet, f32)>,
    allowed: Option<&TokenSet>,
) {
    if !bias.is_empty() {
        out.str("bias").map(bias.len());
        for (token, bias) in bias {
            out.uint(u64::from(*token)).f32(*bias);
        }
    }
    if let Some((tokens, value)) = bias_mask {
        out.str("bias_mask").map(2).str("mask").bin(tokens.as_bytes()).str("value").f32(value);
    }
    if let Some(tokens) = allowed {
        out.str("allow").bin(tokens.as_bytes());
    }
}

pub(crate) fn write_repetition(out: &mut Writer, tokens: &TokenSet, penalty: f32) {
    out.str("repetition").map(2).str("mask").bin(tokens.as_bytes()).str("penalty").f32(penalty);
}
