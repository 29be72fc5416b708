//! Typed inputs and results of Symphony programs, by serde.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use symphony::Session;
//! use symphony_serde::Json;
//!
//! #[derive(Deserialize)]
//! struct Question {
//!     text: String,
//!     #[serde(default = "some")]
//!     max_tokens: usize,
//! }
//!
//! fn some() -> usize {
//!     64
//! }
//!
//! #[derive(Serialize)]
//! struct Answer {
//!     text: String,
//!     logprob: f64,
//! }
//!
//! #[symphony::main]
//! async fn run(Json(question): Json<Question>) -> symphony::Result<Json<Answer>> {
//!     let mut chat = Session::chat("")?;
//!     chat.user(&question.text)?;
//!     let sampling = symphony::Sampling::new().max_tokens(question.max_tokens);
//!     let reply = chat.reply(&sampling).await?;
//!     Ok(Json(Answer { text: reply.text, logprob: reply.logprob })) // the run's last message
//! }
//! ```

#![no_std]
#![deny(missing_docs)]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::Serialize;
use symphony::{FromInput, InputError, Outcome};

/// A value that an entry takes from, or returns as, JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromInput for Json<T> {
    fn from_input(input: Vec<u8>) -> Result<Json<T>, InputError> {
        let read = serde_json::from_slice(&input).map(Json);
        read.map_err(|error| InputError::new(format!("the input: {}", error)))
    }
}

impl<T: Serialize> Outcome for Json<T> {
    fn code(self) -> i32 {
        serde_json::to_vec(&self.0).code()
    }
}
