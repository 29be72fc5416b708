//! A run's input as named parameters, with words for what is wrong with them.

use crate::json;
use crate::msgpack;
use crate::process::{self, Level};
use crate::sampling::Sampling;
use crate::serve::Refusal;
use crate::value::Value;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// The parameters of a run: a JSON object, or a plain text, which is the parameter `prompt`.
///
/// A parameter of the wrong kind or outside its range is an error, in words that name it.
///
/// ```
/// # symphony::testing::Host::new().input(r#"{"prompt": "def f", "n": 3, "seed": 7}"#).run(|| {
/// use symphony::Input;
///
/// let input = Input::read()?;
/// assert_eq!(input.text("prompt")?, "def f");
/// assert_eq!(input.whole("n", 4, 1..=64)?, 3);
/// assert_eq!(input.whole("levels", 2, 1..=8)?, 2); // not given
/// assert!(input.whole("n", 4, 1..=2).unwrap_err().to_string().contains("from 1 to 2"));
/// # Ok::<(), symphony::InputError>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    given: Value,
}

/// A parameter is not what it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    words: String,
    refusal: Option<Box<Refusal>>,
}

impl InputError {
    /// An error with these words.
    pub fn new(words: impl Into<String>) -> InputError {
        InputError { words: words.into(), refusal: None }
    }

    /// One of a request, which refuses it.
    pub(crate) fn of(refusal: Refusal) -> InputError {
        InputError { words: refusal.message.clone(), refusal: Some(Box::new(refusal)) }
    }

    /// The refusal of a request whose input it is.
    pub(crate) fn refusal(&self) -> Refusal {
        self.refusal.as_deref().cloned().unwrap_or_else(|| Refusal::new(self.words.as_str()))
    }

    /// Tells it as an entry's error; returns the exit code.
    pub(crate) fn end(&self) -> i32 {
        if let Some(refusal) = &self.refusal {
            return refusal.end();
        }
        process::log(Level::Error, &self.words);
        1
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for InputError {}

/// What a parameter is, or what is wrong with it.
pub type InputResult<T> = Result<T, InputError>;

impl Input {
    /// This run's.
    pub fn read() -> InputResult<Input> {
        Input::parse(&process::input())
    }

    /// Those in a text.
    pub fn parse(text: &[u8]) -> InputResult<Input> {
        if text.first() == Some(&b'{') {
            let given =
                json::decode(text).map_err(|error| InputError::new(format!("{}", error)))?;
            return Ok(Input { given });
        }
        // A parent's: no UTF-8 begins as a map in MessagePack does.
        if text.first().map_or(false, |byte| (0x80..0x90).contains(byte)) {
            let given =
                msgpack::decode(text).map_err(|error| InputError::new(format!("{}", error)))?;
            return Ok(Input { given });
        }
        let pairs = match String::from_utf8_lossy(text) {
            text if text.is_empty() => Vec::new(),
            text => [(Value::Str("prompt".into()), Value::Str(text.into_owned()))].into(),
        };
        Ok(Input { given: Value::Map(pairs) })
    }

    /// The value under a name, of any type.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.given.get(name).filter(|value| **value != Value::Nil)
    }

    /// Puts a value under a name, instead of what was there: for a child's input, which has room for
    /// 15 of them.
    pub fn set(&mut self, name: &str, value: Value) {
        if let Value::Map(pairs) = &mut self.given {
            pairs.retain(|(key, _)| key.as_str() != Some(name));
            pairs.push((Value::Str(name.into()), value));
        }
    }

    /// All of them, as a child's input: MessagePack, which [`Input::read`] reads as well.
    pub fn to_bytes(&self) -> Vec<u8> {
        msgpack::encode(&self.given)
    }

    fn read_as<'a, T>(
        &'a self,
        name: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> InputResult<Option<T>> {
        let wrong = || InputError::new(format!("{} in the input has to be {}", name, what));
        self.get(name).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    /// A text that has to be there, and not empty.
    pub fn text(&self, name: &str) -> InputResult<&str> {
        let given = self.read_as(name, "a text", Value::as_str)?;
        let missing = || InputError::new(format!("the input needs a {}", name));
        given.filter(|text| !text.is_empty()).ok_or_else(missing)
    }

    /// A text, or the default.
    pub fn text_or<'a>(&'a self, name: &str, default: &'a str) -> InputResult<&'a str> {
        Ok(self.read_as(name, "a text", Value::as_str)?.unwrap_or(default))
    }

    /// Texts, or none.
    pub fn texts(&self, name: &str) -> InputResult<Vec<&str>> {
        let texts = |value: &'_ Value| {
            value.as_array().map_or(false, |items| items.iter().all(|item| item.as_str().is_some()))
        };
        let items = self
            .read_as(name, "a list of texts", |value| value.as_array().filter(|_| texts(value)))?;
        Ok(items.unwrap_or_default().iter().filter_map(Value::as_str).collect())
    }

    /// A whole number in a range, or the default.
    pub fn whole(
        &self,
        name: &str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> InputResult<usize> {
        let what = format!("a whole number from {} to {}", range.start(), range.end());
        let read = |value: &Value| value.as_u32().filter(|n| range.contains(n));
        Ok(self.read_as(name, &what, read)?.unwrap_or(default) as usize)
    }

    /// A number, or the default.
    pub fn number(&self, name: &str, default: f64) -> InputResult<f64> {
        Ok(self.read_as(name, "a number", Value::as_f64)?.unwrap_or(default))
    }

    /// True or false; false without it.
    pub fn flag(&self, name: &str) -> InputResult<bool> {
        Ok(self.read_as(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// How to generate: `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `stop` (a text or several),
    /// `ignore_eos` (which is [`Sampling::exact`]), and how many tokens at most under the name `tokens`.
    pub fn sampling(&self, tokens: &str, default: u32) -> InputResult<Sampling> {
        let sampling = Sampling::new()
            .max_tokens(self.whole(tokens, default, 1..=u32::MAX)?)
            .temperature(self.number("temperature", 0.0)? as f32)
            .top_k(self.whole("top_k", 0, 0..=u32::MAX)? as u32)
            .top_p(self.number("top_p", 1.0)? as f32)
            .min_p(self.number("min_p", 0.0)? as f32)
            .seed(self.read_as("seed", "a whole number", Value::as_u64)?)
            .exact(self.flag("ignore_eos")?);
        match self.get("stop") {
            Some(Value::Str(text)) => Ok(sampling.stop(text.as_str())),
            _ => Ok(self.texts("stop")?.into_iter().fold(sampling, Sampling::stop)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn words<T: fmt::Debug>(given: InputResult<T>) -> String {
        given.unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let input = Input::parse(br#"{"n": "3", "texts": ["a", 1], "prompt": "", "x": null}"#);
        let input = input.unwrap();
        assert_eq!(
            words(input.whole("n", 1, 0..=9)),
            "n in the input has to be a whole number from 0 to 9"
        );
        assert_eq!(words(input.texts("texts")), "texts in the input has to be a list of texts");
        assert_eq!(words(input.text("prompt")), "the input needs a prompt");
        assert_eq!(words(input.flag("n")), "n in the input has to be true or false");
        assert_eq!(input.text_or("x", "default").unwrap(), "default");
        assert!(words(Input::parse(b"{oh")).contains("at byte"));
    }

    #[test]
    fn a_plain_text_is_the_prompt_and_nothing_is_nothing() {
        assert_eq!(Input::parse(b"def f").unwrap().text("prompt").unwrap(), "def f");
        let empty = Input::parse(b"").unwrap();
        assert_eq!(empty.sampling("tokens", 5).unwrap(), Sampling::new().max_tokens(5));
        assert!(empty.text("prompt").is_err() && empty.texts("stop").unwrap().is_empty());
    }

    #[test]
    fn a_child_s_input_is_the_parent_s_with_changes() {
        let mut input = Input::parse(br#"{"prompt": "a", "n": 1}"#).unwrap();
        input.set("n", Value::UInt(2));
        input.set("prompt", Value::Nil);
        let child = Input::parse(&input.to_bytes()).unwrap();
        assert_eq!(
            (child.get("n"), child.whole("n", 1, 0..=9).unwrap()),
            (Some(&Value::Int(2)), 2)
        );
        assert!(child.text("prompt").is_err());
    }

    #[test]
    fn sampling_is_read() {
        let text = br#"{"temperature": 0.5, "top_k": 9, "seed": 3, "stop": ["\n"], "len": 7}"#;
        let sampling = Input::parse(text).unwrap().sampling("len", 1).unwrap();
        let expected = Sampling::new().temperature(0.5).top_k(9).seed(3).stop("\n");
        assert_eq!(sampling, expected.max_tokens(7));
        let input = Input::parse(br#"{"ignore_eos": true, "stop": "x"}"#).unwrap();
        let expected = Sampling::new().max_tokens(2).exact(true).stop("x");
        assert_eq!(input.sampling("n", 2).unwrap(), expected);
        let wrong = Input::parse(br#"{"seed": "x"}"#).unwrap();
        assert_eq!(words(wrong.sampling("n", 2)), "seed in the input has to be a whole number");
    }
}
