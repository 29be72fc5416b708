//! The model: what it is, and its tokens.

use crate::error::{filled, Errno, Error, Result};
use crate::msgpack::{self, Writer};
use crate::raw;
use crate::value::Value;
use alloc::string::String;
use alloc::vec::Vec;

/// What the model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Tokens are below it.
    pub vocab_size: u32,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// The token that begins a text, where the model has one.
    pub bos: Option<u32>,
    /// Positions are below it.
    pub max_context: u32,
    /// Entries in a page of KV.
    pub page_size: u32,
    /// What it computes in, such as `"fp32"`.
    pub dtype: String,
    /// Numbers of a hidden state.
    pub hidden_size: u32,
}

/// What the model is.
#[track_caller]
pub fn info() -> Result<Info> {
    let bytes = filled("model_info", 512, |ptr, cap| unsafe { raw::model_info(ptr, cap) })?;
    read_info(&bytes).ok_or_else(|| Error::new("model_info", Errno::EIO))
}

/// The tokens of a conversation with tools: a map of `messages`, and of `tools`, `variables`,
/// `add_generation_prompt` and `continue_final_message` where they are wanted, as the ABI has them.
///
/// ```
/// # symphony::testing::Host::new().run(|| {
/// use symphony::{json, model};
///
/// let text = br#"{"messages": [{"role": "user", "content": "hi"}], "tools": []}"#;
/// let tokens = model::chat_with(&json::decode(text).unwrap()).unwrap();
/// assert_eq!(model::detokenize(&tokens).unwrap(), b"<user>hi\n<assistant>");
/// # });
/// ```
#[track_caller]
pub fn chat_with(conversation: &Value) -> Result<Vec<u32>> {
    let request = msgpack::encode(conversation);
    filled("chat_with", request.len() / 2 + 64, |out, cap| unsafe {
        raw::chat_with(request.as_ptr(), request.len(), out, cap)
    })
}

fn read_info(bytes: &[u8]) -> Option<Info> {
    let value = msgpack::decode(bytes).ok()?;
    let number = |key| value.get(key).and_then(Value::as_u32);
    let text = |key| value.get(key).and_then(Value::as_str).map(String::from);
    Some(Info {
        name: text("name")?,
        vocab_size: number("vocab_size")?,
        eos: value.get("eos")?.as_array()?.iter().filter_map(Value::as_u32).collect(),
        bos: number("bos"),
        max_context: number("max_context")?,
        page_size: number("page_size")?,
        dtype: text("dtype")?,
        hidden_size: number("hidden_size")?,
    })
}

/// The tokens of a text. No special tokens are added, and their spellings stay text.
#[track_caller]
pub fn tokenize(text: &str) -> Result<Vec<u32>> {
    filled("tokenize", text.len() / 2 + 16, |out, cap| unsafe {
        raw::tokenize(text.as_ptr(), text.len(), out, cap)
    })
}

/// The bytes of tokens. A token may end inside of a character: [`crate::decode::Utf8`] joins them.
#[track_caller]
pub fn detokenize(tokens: &[u32]) -> Result<Vec<u8>> {
    filled("detokenize", 8 * tokens.len() + 16, |out, cap| unsafe {
        raw::detokenize(tokens.as_ptr(), tokens.len(), out, cap)
    })
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Such as `"system"`, `"user"` or `"assistant"`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// The tokens of a conversation in the model's own chat template, ready for the answer.
#[track_caller]
pub fn chat(messages: &[Message]) -> Result<Vec<u32>> {
    let mut out = Writer::new();
    out.array(messages.len());
    for message in messages {
        out.map(2).str("role").str(&message.role).str("content").str(&message.content);
    }
    let request = out.bytes();
    filled("chat", request.len() / 2 + 64, |out, cap| unsafe {
        raw::chat(request.as_ptr(), request.len(), out, cap)
    })
}
