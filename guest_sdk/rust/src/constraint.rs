//! Constraints: texts that are instances of a JSON schema, or match a regular expression or a grammar.
//!
//! ```no_run
//! # symphony::block_on(async {
//! use symphony::{decode::Generation, model, Constraint, KvFile};
//!
//! let schema = r#"{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}"#;
//! let person = Constraint::json_schema(schema).map_err(|why| why.error())?;
//! let kv = KvFile::create()?;
//! let prompt = model::tokenize("A person: ")?;
//! let text = Generation::new(&kv, &prompt)?.constrained(&person).text().await?;
//! # Ok::<(), symphony::Error>(()) });
//! ```
//!
//! The server compiles each text once and keeps it: asking for it again takes less than a
//! millisecond. The state of a text is not the constraint's but each file's: it follows from the
//! tokens that were appended since the constraint was first used on it. So forks go on from where
//! they are forked, each its own way, and [`KvFile::truncate`](crate::KvFile::truncate) takes text back. One text behind
//! another in the same file takes another `Constraint`, or `constrained_since`.

use crate::error::{check, filled, Errno, Error};
use crate::msgpack::Writer;
use crate::raw;
use alloc::string::String;
use core::fmt;

/// A compiled schema, expression or grammar; dropping it closes it.
#[derive(Debug)]
pub struct Constraint {
    handle: i32,
}

/// Why there is no constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// `EINVAL`: a mistake; `EFBIG`: there is too much of it; `EDQUOT`, `EAGAIN`, `ENOSYS`.
    pub errno: Errno,
    /// What is wrong and where, such as `at #/properties/age: Invalid type: intger`; it may be empty.
    pub words: String,
}

impl Constraint {
    /// Texts that are instances of a JSON schema, which is JSON itself. Between their tokens is at
    /// most a little space; `x-guidance` in the schema may say otherwise.
    pub fn json_schema(schema: &str) -> Result<Constraint, Refused> {
        Constraint::compile(0, schema)
    }

    /// Texts that a regular expression matches from beginning to end. It has no look-around and no
    /// references back.
    pub fn regex(expression: &str) -> Result<Constraint, Refused> {
        Constraint::compile(1, expression)
    }

    /// Texts of a context-free grammar in Lark's syntax; it begins with `start`.
    pub fn lark(grammar: &str) -> Result<Constraint, Refused> {
        Constraint::compile(2, grammar)
    }

    fn compile(kind: i32, text: &str) -> Result<Constraint, Refused> {
        let made = unsafe { raw::constraint(kind, text.as_ptr(), text.len()) };
        match check("constraint", made) {
            Ok(_) => Ok(Constraint { handle: made }),
            Err(error) => Err(Refused { errno: error.errno, words: last_error(error.errno) }),
        }
    }
}

impl Drop for Constraint {
    fn drop(&mut self) {
        unsafe { raw::constraint_close(self.handle) };
    }
}

/// The words of a refusal; the server has them for mistakes and for what is too much.
fn last_error(errno: Errno) -> String {
    if errno != Errno::EINVAL && errno != Errno::EFBIG {
        return String::new();
    }
    let bytes = filled("last_error", 1024, |ptr, cap| unsafe { raw::last_error(ptr, cap) });
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "constraint: {}", self.errno)?;
        if self.words.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.words)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Refused {}

impl Refused {
    /// The same without words. It is no `From`: with a second one the compiler could no longer tell
    /// the error of an `async` block that only says `?`.
    pub fn error(&self) -> Error {
        Error::new("constraint", self.errno)
    }
}

/// A constraint in a file, and where its text begins if that is said.
pub(crate) struct Text<'a> {
    pub(crate) constraint: &'a Constraint,
    pub(crate) since: Option<u32>,
}

impl Text<'_> {
    /// Writes the options.
    pub(crate) fn write(&self, out: &mut Writer) {
        out.str("constraint").int(i64::from(self.constraint.handle));
        if let Some(since) = self.since {
            out.str("since").uint(u64::from(since));
        }
    }
}
