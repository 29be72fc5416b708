//! JSON that is written piece by piece: what programs send.

use crate::json::quote;
use alloc::format;
use alloc::string::String;

/// The text of a JSON object, in the making.
///
/// ```
/// use symphony::json::{list, Object};
///
/// let beams = list(["a", "b"].map(|text| Object::new().text("text", text).finish()));
/// let message = Object::new().raw("beams", &beams).whole("tokens", 2).decimal("score", -0.5);
/// let expected = r#"{"beams":[{"text":"a"},{"text":"b"}],"tokens":2,"score":-0.500000}"#;
/// assert_eq!(message.finish(), expected);
/// ```
#[derive(Clone, Debug)]
#[must_use = "finish() gives the text"]
pub struct Object {
    written: String,
}

impl Default for Object {
    fn default() -> Object {
        Object::new()
    }
}

impl Object {
    /// Nothing is in it.
    pub fn new() -> Object {
        Object { written: String::from("{") }
    }

    /// A member whose value is JSON already.
    pub fn raw(mut self, name: &str, json: &str) -> Object {
        self.written.push_str(if self.written.len() > 1 { "," } else { "" });
        self.written.push_str(&quote(name));
        self.written.push(':');
        self.written.push_str(json);
        self
    }

    /// A text.
    pub fn text(self, name: &str, text: &str) -> Object {
        let quoted = quote(text);
        self.raw(name, &quoted)
    }

    /// A whole number.
    pub fn whole(self, name: &str, number: u64) -> Object {
        let digits = format!("{}", number);
        self.raw(name, &digits)
    }

    /// A number with six decimals.
    pub fn decimal(self, name: &str, number: f64) -> Object {
        let digits = decimal(number);
        self.raw(name, &digits)
    }

    /// True or false.
    pub fn flag(self, name: &str, truth: bool) -> Object {
        self.raw(name, if truth { "true" } else { "false" })
    }

    /// The text.
    pub fn finish(mut self) -> String {
        self.written.push('}');
        self.written
    }
}

/// The text of a JSON list, of items that are JSON already.
pub fn list<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    let mut text = String::from("[");
    for item in items {
        text.push_str(if text.len() > 1 { "," } else { "" });
        text.push_str(item.as_ref());
    }
    text.push(']');
    text
}

/// The number with six decimals, or `null` where it is none. To format any float in full would add a
/// quarter to a small program.
fn decimal(number: f64) -> String {
    if !number.is_finite() {
        return String::from("null");
    }
    let size = if number < 0.0 { -number } else { number }; // abs() needs the standard library
    let millionths = (size * 1e6 + 0.5) as u64;
    let sign = if number < 0.0 && millionths > 0 { "-" } else { "" };
    format!("{}{}.{:06}", sign, millionths / 1_000_000, millionths % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::decode;

    #[test]
    fn decimals_are_rounded() {
        assert_eq!(decimal(-1.234_567_8), "-1.234568");
        assert_eq!(decimal(12.0), "12.000000");
        assert_eq!(decimal(-0.000_001_2), "-0.000001");
        assert_eq!(decimal(-0.000_000_1), "0.000000");
        assert_eq!(decimal(f64::NEG_INFINITY), "null");
    }

    #[test]
    fn what_is_written_is_json() {
        let inner = list([Object::default().finish(), list::<&str>([])]);
        let text = Object::new().text("a \"b\"", "c\n").flag("yes", true).raw("in", &inner);
        let value = decode(text.finish().as_bytes()).unwrap();
        assert_eq!(value.get("a \"b\"").unwrap().as_str(), Some("c\n"));
        assert_eq!(value.get("yes").unwrap().as_bool(), Some(true));
        assert_eq!(value.get("in").unwrap().as_array().unwrap().len(), 2);
    }
}
