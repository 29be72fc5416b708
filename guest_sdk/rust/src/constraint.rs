//! Constraints: texts that are instances of a JSON schema, or match a regular expression or a grammar.
//!
//! ```no_run
//! # symphony::block_on(async {
//! use symphony::{model, Constraint, KvFile, Sampling};
//!
//! let schema = r#"{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}"#;
//! let person = Constraint::json_schema(schema).map_err(|why| why.error())?;
//! let kv = KvFile::create()?;
//! let prompt = model::tokenize("A person: ")?;
//! let text = kv.generate(&prompt, &Sampling::new().constraint(&person)).text().await?;
//! # Ok::<(), symphony::Error>(()) });
//! ```
//!
//! The server compiles each text once and keeps it: asking for it again takes less than a
//! millisecond. The state of a text is not the constraint's but each file's: it follows from the
//! tokens that were appended since the constraint was first used on it. So forks go on from where
//! they are forked, each its own way, and [`KvFile::truncate`](crate::KvFile::truncate) takes text back. One text behind
//! another in the same file takes another `Constraint`, or `constraint_since`.

use crate::error::{check, filled, Errno, Error};
use crate::msgpack::Writer;
use crate::raw;
use alloc::rc::Rc;
use alloc::string::String;
use core::fmt;

/// A compiled schema, expression or grammar. A clone is the same one; dropping the last closes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    held: Rc<Held>,
}

#[derive(Debug, PartialEq, Eq)]
struct Held {
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

    /// Writes the options of a text under it, and where that begins if it is said.
    pub(crate) fn write(&self, since: Option<u32>, out: &mut Writer) {
        out.str("constraint").int(i64::from(self.held.handle));
        if let Some(since) = since {
            out.str("since").uint(u64::from(since));
        }
    }

    fn compile(kind: i32, text: &str) -> Result<Constraint, Refused> {
        let made = unsafe { raw::constraint(kind, text.as_ptr(), text.len()) };
        match check("constraint", made) {
            Ok(_) => Ok(Constraint { held: Rc::new(Held { handle: made }) }),
            Err(error) => Err(Refused { errno: error.errno, words: last_error(error.errno) }),
        }
    }
}

impl Drop for Held {
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
    #[track_caller]
    pub fn error(&self) -> Error {
        Error::new("constraint", self.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::{Constraint, Refused};
    use crate::decode::Finish;
    use crate::pred::TokenSet;
    use crate::testing::Host;
    use crate::{block_on, model, Errno, KvFile, Result, Sampling};
    use alloc::string::String;
    use alloc::vec::Vec;

    async fn said(kv: &KvFile, prompt: &str, constraint: &Constraint) -> Result<String> {
        let sampling = Sampling::new().constraint(constraint);
        let mut text = kv.generate(&model::tokenize(prompt)?, &sampling);
        let found = text.text().await?;
        assert_eq!(text.finish(), Some(&Finish::Token(256)));
        Ok(found)
    }

    /// The bytes that may come behind `tokens`, as text.
    async fn may_follow(kv: &KvFile, tokens: &[u32], constraint: &Constraint) -> Result<String> {
        let logits = kv.pred(tokens).constraint(constraint).logits().await?;
        let allowed = logits.iter().take(256).enumerate();
        Ok(allowed.filter(|(_, x)| x.is_finite()).map(|(t, _)| char::from(t as u8)).collect())
    }

    #[test]
    fn a_text_matches_and_ends_its_generation() {
        Host::new().run(|| {
            block_on(async {
                let year = Constraint::regex("(19|20)[0-9]{2}").unwrap();
                for prompt in ["in ", "since ", "until "] {
                    let year = said(&KvFile::create()?, prompt, &year).await?;
                    assert!((1900..2100).contains(&year.parse::<u32>().unwrap()), "{}", year);
                }
                Result::Ok(())
            })
            .unwrap()
        });
    }

    #[test]
    fn a_text_is_its_files() {
        Host::new().run(|| {
            block_on(async {
                let word = Constraint::regex("ab|cd[ef]?").unwrap();
                let kv = KvFile::create()?;
                assert_eq!(may_follow(&kv, &[7, 8], &word).await?, "ac");
                let fork = kv.fork()?;
                assert_eq!(may_follow(&kv, &[u32::from(b'a')], &word).await?, "b");
                assert_eq!(may_follow(&fork, &[u32::from(b'c')], &word).await?, "d");
                kv.truncate(2)?;
                assert_eq!(may_follow(&kv, &[u32::from(b'c')], &word).await?, "d");
                kv.truncate(1)?;
                assert_eq!(may_follow(&kv, &[u32::from(b'x')], &word).await?, "ac");
                let misfit = may_follow(&fork, &[u32::from(b'z')], &word).await.unwrap_err();
                assert_eq!(misfit.errno, Errno::EINVAL);
                let (a, d) = ([u32::from(b'a')], [u32::from(b'd')]);
                let ends = fork.pred(&d).constraint_since(&word, 2).of(&[256]).await?;
                assert!(ends[0].is_finite());
                let none = TokenSet::none(257);
                let nothing = kv.pred(&a).constraint(&word).allowed_tokens(&none).argmax().await;
                assert_eq!(nothing.unwrap_err().errno, Errno::EINVAL);
                Result::Ok(())
            })
            .unwrap()
        });
    }

    #[test]
    fn a_schema_is_what_the_test_says() {
        let schema = r#"{"type": "boolean"}"#;
        let text = Host::new().grammar(schema, "true|false").run(|| {
            block_on(async {
                let schema = Constraint::json_schema(schema).unwrap();
                said(&KvFile::create()?, "is it? ", &schema).await
            })
            .unwrap()
        });
        assert!(["true", "false"].contains(&text.as_str()), "{}", text);
        let lark = Host::new().run(|| {
            block_on(async {
                let lark = Constraint::lark("start: /x/").unwrap();
                may_follow(&KvFile::create()?, &[1], &lark).await
            })
        });
        assert_eq!(lark.unwrap().chars().count(), 256, "nobody has said what it means");
    }

    #[test]
    fn a_mistake_has_words_with_its_place() {
        let refused: Vec<Refused> = Host::new().run(|| {
            ["a(", "((a{900}){900}){900}"]
                .iter()
                .map(|r| Constraint::regex(r).unwrap_err())
                .collect()
        });
        assert_eq!(refused[0].errno, Errno::EINVAL);
        assert_eq!(refused[0].words, "at column 3: a group is not closed");
        assert_eq!(refused[1].errno, Errno::EFBIG);
    }
}
