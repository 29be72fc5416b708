//! A program as a model: what an OpenAI client asks of it, and what it answers.
//!
//! A named program is a model of its tenant's OpenAI routes. [`Request`] reads what a client sent, on
//! any of the routes; an [`Answer`] is text, reasoning and calls of tools as they come; a [`Refusal`]
//! is an error in words.
//!
//! ```
//! use symphony::serve::{Answer, Finish, Refusal, Request};
//!
//! #[symphony::main]
//! async fn run(request: Request) -> Result<(), Refusal> {
//!     if request.messages.is_empty() {
//!         return Err(Refusal::new("say something").param("messages"));
//!     }
//!     let mut answer = Answer::new();
//!     answer.reasoning("Which way?")?;
//!     if let Some(tool) = request.tools.first() {
//!         answer.call(&tool.name)?.arguments("{}")?; // or in pieces, as the model writes them
//!         return Ok(()); // `tool_calls` is the reason, unless another is said
//!     }
//!     let mut session = request.session()?;
//!     let reply = session.stream(&request.sampling, |piece| answer.text(piece)).await?;
//!     answer.finish(&reply.finish)?;
//!     Ok(())
//! }
//! # let asked = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}"#;
//! # let (outcome, seen) = symphony::testing::Host::new().input(asked).observe(|| {
//! #     symphony::block_on(run(Request::read().unwrap()))
//! # });
//! # outcome.unwrap().unwrap();
//! # let said = seen.answers();
//! # assert_eq!((said[0].reasoning.as_str(), said[0].finish), ("Which way?", Some(Finish::Length)));
//! ```
//!
//! Such a program sends nothing by [`process::send`], whose bytes would stand between the records that
//! this module sends. A program that sends nothing but plain text needs none of this: it gives one
//! choice with that text.

mod reading;
mod request;

pub use request::{Message, Request, Tool, ToolCall, ToolChoice};

use crate::decode;
use crate::error::Result;
use crate::input::InputError;
use crate::model;
use crate::msgpack::Writer;
use crate::pred::{Choice, Scored};
use crate::process::{self, Level};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What the messages begin with; the last byte is the version of the records.
pub(crate) const OPENING: [u8; 8] = *b"\xff\xff\xff\xffLIP\x01";
/// A record has 64 KiB at most: longer texts go in parts.
const PART_BYTES: usize = 32 << 10;

/// Why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Finish {
    /// It is complete.
    Stop = 0,
    /// It has as many tokens as wanted.
    Length = 1,
    /// The client has to call tools.
    ToolCalls = 2,
    /// The rest was left out.
    ContentFilter = 3,
}

impl From<&decode::Finish> for Finish {
    fn from(finish: &decode::Finish) -> Finish {
        match finish {
            decode::Finish::Length => Finish::Length,
            _ => Finish::Stop,
        }
    }
}

/// A token's bytes and log-probability, with the likeliest tokens in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its bytes.
    pub token: Vec<u8>,
    /// Its log-probability.
    pub logprob: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<(Vec<u8>, f32)>,
}

impl TokenLogprob {
    /// That of a token which [`Stream::next_scored`](crate::stream::Stream::next_scored) or
    /// [`Pred::sample_scored`](crate::pred::Pred::sample_scored) gave.
    #[track_caller]
    pub fn of(scored: &Scored) -> Result<TokenLogprob> {
        let bytes = |choice: &Choice| model::detokenize(&[choice.token]);
        let top = scored.best.iter().map(|best| Ok((bytes(best)?, best.logprob)));
        Ok(TokenLogprob {
            token: bytes(&scored.choice)?,
            logprob: scored.choice.logprob,
            top: top.collect::<Result<_>>()?,
        })
    }
}

/// One choice of the answer to a request. What is written is sent at once.
///
/// Unless [`finish`](Answer::finish) says why it has ended, it ends with the program: for
/// `tool_calls` if it has some, else for `stop`.
#[derive(Debug)]
pub struct Answer {
    choice: u16,
    calls: u16,
    opened: bool,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer::new()
    }
}

impl Answer {
    /// The answer with one choice.
    pub fn new() -> Answer {
        Answer { choice: 0, calls: 0, opened: false }
    }

    /// So many choices: [`Request::n`] of them to each prompt, in this order. A client gets an error if
    /// one of them is never written to.
    pub fn several(count: usize) -> Vec<Answer> {
        (0..count).map(|choice| Answer { choice: choice as u16, ..Answer::new() }).collect()
    }

    /// The next text.
    #[track_caller]
    pub fn text(&mut self, text: &str) -> Result<()> {
        parts(text).try_for_each(|part| self.piece(b'p', &[GOING], &[part.as_bytes()]))
    }

    /// The next text, with the log-probabilities of its tokens: of a few, since a record has an end.
    #[track_caller]
    pub fn text_with(&mut self, text: &str, logprobs: &[TokenLogprob]) -> Result<()> {
        let mut out = Writer::new();
        out.array(logprobs.len());
        for entry in logprobs {
            out.array(3).bin(&entry.token).f64(f64::from(entry.logprob)).array(entry.top.len());
            for (token, logprob) in &entry.top {
                out.array(2).bin(token).f64(f64::from(*logprob));
            }
        }
        let length = (text.len() as u32).to_le_bytes();
        self.piece(b'l', &[GOING], &[&length, text.as_bytes(), out.bytes()])
    }

    /// The next text of the reasoning, which is no part of the answer.
    #[track_caller]
    pub fn reasoning(&mut self, text: &str) -> Result<()> {
        parts(text).try_for_each(|part| self.piece(b'r', &[], &[part.as_bytes()]))
    }

    /// Begins a call of one of the client's tools. Its name has letters, digits, `_` and `-`.
    #[track_caller]
    pub fn call(&mut self, name: &str) -> Result<OpenCall<'_>> {
        let number = self.calls;
        self.piece(b'c', &number.to_le_bytes(), &[name.as_bytes()])?;
        self.calls += 1;
        Ok(OpenCall { answer: self, number })
    }

    /// Ends it for a reason: a [`Finish`], or that of a [`Reply`](crate::Reply) or a
    /// [`Generation`](decode::Generation).
    #[track_caller]
    pub fn finish(&mut self, finish: impl Into<Finish>) -> Result<()> {
        self.piece(b'p', &[finish.into() as u8], &[])
    }

    #[track_caller]
    fn piece(&mut self, kind: u8, head: &[u8], rest: &[&[u8]]) -> Result<()> {
        let choice = self.choice.to_le_bytes();
        let begins = !core::mem::replace(&mut self.opened, true);
        send_record(begins, kind, &[&[&choice[..], head], rest].concat().concat())
    }
}

const GOING: u8 = 255;

/// A call of a tool that is being written.
#[derive(Debug)]
pub struct OpenCall<'a> {
    answer: &'a mut Answer,
    number: u16,
}

impl OpenCall<'_> {
    /// The next text of its arguments: in all they have to be a JSON object.
    #[track_caller]
    pub fn arguments(&mut self, json: &str) -> Result<()> {
        let number = self.number.to_le_bytes();
        parts(json).try_for_each(|part| self.answer.piece(b'a', &number, &[part.as_bytes()]))
    }
}

/// Says how many tokens the request took, instead of what the server has counted of the program's own
/// passes: those of the prompt, how many of these were there already, and those of the answers. The
/// answer is complete with it: the client gets it while the program goes on.
#[track_caller]
pub fn usage(prompt: u32, cached: u32, completion: u32) -> Result<()> {
    let counts = [prompt, cached, completion].map(u32::to_le_bytes);
    send_record(true, b'u', &counts.concat())
}

/// Why a request is not answered, or not completely: what the client gets as an error.
///
/// An entry may return it. It is no [`std::error::Error`], so that every other error becomes one by
/// `?`: [`InputError`] with status 400, any other with 500.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status: from 400 on a mistake of the client's, from 500 on one of the program's, which
    /// clients try again.
    pub status: u16,
    /// What programs look at, such as `"invalid_prompt"`.
    pub code: String,
    /// The field of the request that it is about, or nothing.
    pub param: String,
    /// What people read; what is beyond 4,096 characters is cut off.
    pub message: String,
}

impl Refusal {
    /// A mistake of the client's: status 400.
    pub fn new(message: impl Into<String>) -> Refusal {
        let code = String::from("invalid_request");
        Refusal { status: 400, code, param: String::new(), message: message.into() }
    }

    /// Any other status from 400 to 599, such as 429, after which clients try again.
    pub fn status(mut self, status: u16) -> Refusal {
        self.status = status;
        self
    }

    /// The code.
    pub fn code(mut self, code: impl Into<String>) -> Refusal {
        self.code = code.into();
        self
    }

    /// The field of the request that it is about.
    pub fn param(mut self, param: impl Into<String>) -> Refusal {
        self.param = param.into();
        self
    }

    /// Sends it. Nothing may follow.
    #[track_caller]
    pub fn send(&self) -> Result<()> {
        let cut = |text: &str, most| text.chars().take(most).collect::<String>();
        let mut out = Writer::new();
        out.map(4)
            .str("status")
            .uint(u64::from(self.status))
            .str("code")
            .str(&cut(&self.code, 256));
        out.str("param").str(&cut(&self.param, 256)).str("message").str(&cut(&self.message, 4096));
        send_record(true, b'e', out.bytes())
    }

    /// Sends it, and logs what is no client's mistake. Returns the exit code.
    pub(crate) fn end(&self) -> i32 {
        if self.status >= 500 {
            process::log(Level::Error, &self.message);
        }
        self.send().map_or(1, |()| i32::from(self.status >= 500))
    }

    fn of_program(error: &dyn core::fmt::Display) -> Refusal {
        Refusal::new(error.to_string()).status(500).code("program_failed")
    }
}

#[cfg(feature = "std")]
impl<E: std::error::Error + 'static> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        let any: &dyn core::any::Any = &error;
        match any.downcast_ref::<InputError>() {
            Some(wrong) => wrong.refusal(),
            None => Refusal::of_program(&error),
        }
    }
}

#[cfg(not(feature = "std"))]
impl From<crate::error::Error> for Refusal {
    fn from(error: crate::error::Error) -> Refusal {
        Refusal::of_program(&error)
    }
}

#[cfg(not(feature = "std"))]
impl From<InputError> for Refusal {
    fn from(error: InputError) -> Refusal {
        error.refusal()
    }
}

#[track_caller]
fn send_record(begins: bool, kind: u8, rest: &[u8]) -> Result<()> {
    let mut record = Vec::with_capacity(OPENING.len() + 5 + rest.len());
    if begins {
        record.extend_from_slice(&OPENING);
    }
    record.extend_from_slice(&(1 + rest.len() as u32).to_le_bytes());
    record.push(kind);
    record.extend_from_slice(rest);
    process::send(record)
}

/// The text in parts that fit into records, none of them empty.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let mut end = rest.len().min(PART_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, behind) = rest.split_at(end);
        rest = behind;
        Some(part).filter(|part| !part.is_empty())
    })
}

#[cfg(test)]
mod tests;
