//! Write LLM inference programs (LIPs) for Symphony.
//!
//! A LIP is a WebAssembly module that runs beside the model. It owns its generation loop and its KV
//! cache: it opens a prefix, forks it, decodes the branches in parallel and keeps what it wants.
//!
//! ```
//! use symphony::{join_all, kv::Save, model, process, KvFile, Sampling};
//!
//! #[symphony::main]
//! async fn run() -> symphony::Result<()> {
//!     // The prefix is computed once, and has a name for later runs.
//!     let prefix = KvFile::create()?;
//!     prefix.prefill(&model::tokenize("def ")?).await?;
//!     prefix.save("prefixes/def", Save::REPLACE)?;
//!
//!     // Every suffix goes on in a fork of its own; each step decodes all of them in one batch.
//!     let answers = join_all(["add", "sub", "mul"].map(|suffix| {
//!         let prefix = &prefix;
//!         async move {
//!             let kv = prefix.fork()?;
//!             let suffix = model::tokenize(suffix)?;
//!             kv.generate(&suffix, &Sampling::new().max_tokens(16)).text().await
//!         }
//!     }));
//!     for answer in answers.await {
//!         process::send(answer?)?;
//!     }
//!     KvFile::remove("prefixes/def")
//! }
//! # let (outcome, seen) = symphony::testing::Host::new().observe(|| symphony::block_on(run()));
//! # outcome.unwrap().unwrap();
//! # assert_eq!((seen.sent.len(), seen.names.len(), seen.passes_per_wait[1]), (3, 0, 3));
//! ```
//!
//! - [`process`]: input, messages, log, time, children, queues
//! - [`model`]: what the model is, tokens, chat template
//! - [`KvFile`] and [`kv`]: KV files; [`pred`]: forward passes; [`stream`]: run-ahead decoding
//! - [`spawn`], [`join_all`], [`select`]: tasks in one instance, over tickets
//! - [`Session`]: a text or a chat that grows, replies, branches, scores; [`Input`]: parameters
//! - [`Sampling`]: how text is generated, by the names of the OpenAI API
//! - [`constraint`]: JSON schemas, regular expressions and grammars that texts keep to
//! - [`decode`]: text that grows, why it ended; [`prompt`]: templates, turns
//! - [`serve`]: a program as a model of the OpenAI routes
//! - [`tool`], [`http`]: the outside
//! - [`testing`]: a program's tests without a server
//! - [`raw`]: the calls themselves
//!
//! What the server does not support fails with [`Errno::ENOSYS`].

#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs, missing_debug_implementations, unsafe_op_in_unsafe_fn)]
// `format!("{}", x)` reads the same on the oldest supported Rust and on the newest.
#![allow(clippy::uninlined_format_args)]

extern crate alloc;

#[cfg(all(not(feature = "std"), not(target_arch = "wasm32")))]
compile_error!("outside of Wasm, the crate needs its `std` feature");

mod combine;
pub mod constraint;
pub mod decode;
mod entry;
mod error;
mod executor;
pub mod http;
mod input;
pub mod json;
pub mod kv;
mod local;
pub mod model;
pub mod msgpack;
mod object;
pub mod pred;
pub mod process;
pub mod prompt;
pub mod raw;
mod sampling;
mod score;
pub mod serve;
mod session;
pub mod stream;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod tool;
mod value;

pub use combine::{
    as_completed, join_all, select, select_all, timeout, try_join_all, AsCompleted, Either,
    JoinAll, Select, SelectAll, TryJoinAll,
};
pub use constraint::Constraint;
pub use entry::{log_panics, FromInput, Outcome};
pub use error::{Errno, Error, Result};
pub use executor::{block_on, spawn, Task, Ticket};
pub use input::{Input, InputError, InputResult};
pub use kv::KvFile;
pub use sampling::Sampling;
pub use session::{Reply, Session, Usage};
#[cfg(feature = "macros")]
pub use symphony_macros::main;
pub use value::{DecodeError, Value};

#[doc(hidden)]
pub mod __private {
    pub use crate::entry::{run, run_async};
    pub use alloc::format;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
