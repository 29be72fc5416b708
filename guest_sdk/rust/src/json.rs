//! JSON: a run's input is JSON text unless it was a string.

pub use crate::object::{list, Object};
use crate::value::{DecodeError, Value, DEPTH_MAX};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The one value in `text`.
pub fn decode(text: &[u8]) -> Result<Value, DecodeError> {
    let text = core::str::from_utf8(text)
        .map_err(|error| DecodeError { what: "text is not UTF-8", offset: error.valid_up_to() })?;
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(DEPTH_MAX)?;
    reader.blank();
    if reader.at < text.len() {
        return Err(reader.wrong("more than one value"));
    }
    Ok(value)
}

/// The text of a value: bytes become text with replacement characters, keys that are not text
/// become text, and numbers that JSON lacks become `null`.
pub fn encode(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

/// The text as a JSON string, quotes included.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    write_str(text, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Nil => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Int(n) => out.push_str(&format!("{}", n)),
        Value::UInt(n) => out.push_str(&format!("{}", n)),
        Value::Float(x) if x.is_finite() => out.push_str(&format!("{:?}", x)),
        Value::Float(_) => out.push_str("null"),
        Value::Str(text) => write_str(text, out),
        Value::Bin(bytes) => write_str(&String::from_utf8_lossy(bytes), out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Value::Map(pairs) => {
            out.push('{');
            for (i, (key, item)) in pairs.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                match key.as_str() {
                    Some(text) => write_str(text, out),
                    None => write_str(&encode(key), out),
                }
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_str(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.at }
    }

    fn peek(&self) -> u8 {
        // A zero byte is no JSON outside of strings, and inside them it is refused too.
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn blank(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, word: &str, what: &'static str) -> Result<(), DecodeError> {
        if self.eat(word) {
            Ok(())
        } else {
            Err(self.wrong(what))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let depth = depth.checked_sub(1).ok_or_else(|| self.wrong("nested too deeply"))?;
        self.blank();
        match self.peek() {
            b'{' => self.map(depth),
            b'[' => self.array(depth),
            b'"' => Ok(Value::Str(self.str()?)),
            b'-' | b'0'..=b'9' => self.number(),
            _ if self.eat("null") => Ok(Value::Nil),
            _ if self.eat("true") => Ok(Value::Bool(true)),
            _ if self.eat("false") => Ok(Value::Bool(false)),
            _ => Err(self.wrong("no value")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, DecodeError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.eat("]") {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.blank();
            if self.eat("]") {
                return Ok(Value::Array(items));
            }
            self.expect(",", "no comma between items")?;
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, DecodeError> {
        self.at += 1;
        let mut pairs = Vec::new();
        self.blank();
        if self.eat("}") {
            return Ok(Value::Map(pairs));
        }
        loop {
            self.blank();
            let key = Value::Str(self.str()?);
            self.blank();
            self.expect(":", "no colon after a key")?;
            pairs.push((key, self.value(depth)?));
            self.blank();
            if self.eat("}") {
                return Ok(Value::Map(pairs));
            }
            self.expect(",", "no comma between pairs")?;
        }
    }

    fn number(&mut self) -> Result<Value, DecodeError> {
        let start = self.at;
        let negative = self.eat("-");
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return Err(self.wrong("a number with a zero before it"));
        }
        let fraction = if self.eat(".") { self.digits()? } else { "" };
        let mut exponent = 0;
        if self.eat("e") || self.eat("E") {
            let down = !self.eat("+") && self.eat("-");
            let digits = self.digits()?.bytes();
            let size = digits.fold(0i32, |n, d| n.saturating_mul(10).saturating_add(digit(d)));
            exponent = if down { -size } else { size };
        }
        let word = &self.text[start..self.at];
        if let Ok(n) = word.parse() {
            return Ok(Value::Int(n));
        }
        Ok(match word.parse() {
            Ok(n) => Value::UInt(n),
            Err(_) => Value::Float(float(negative, whole, fraction, exponent)),
        })
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<&'a str, DecodeError> {
        let rest = &self.text[self.at..];
        let count = rest.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return Err(self.wrong("no number"));
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn str(&mut self) -> Result<String, DecodeError> {
        self.expect("\"", "no string")?;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c| c < ' ' || c == '"' || c == '\\').unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => out.push(self.escape()?),
                _ => return Err(self.wrong("the string does not end")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, DecodeError> {
        self.at += 1;
        let c = match self.peek() {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            c @ (b'"' | b'\\' | b'/') => char::from(c),
            b'u' => return self.unicode(),
            _ => return Err(self.wrong("no escape")),
        };
        self.at += 1;
        Ok(c)
    }

    /// `u` and four digits, or two of them that are a pair; half a pair becomes U+FFFD.
    fn unicode(&mut self) -> Result<char, DecodeError> {
        let high = self.hex()?;
        if (0xd800..0xdc00).contains(&high) && self.text[self.at..].starts_with("\\u") {
            let before = self.at;
            self.at += 1;
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x1_0000 + ((high - 0xd800) << 10 | (low - 0xdc00));
                return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
            }
            self.at = before;
        }
        Ok(char::from_u32(high).unwrap_or('\u{fffd}'))
    }

    fn hex(&mut self) -> Result<u32, DecodeError> {
        let digits = self.text.as_bytes().get(self.at + 1..self.at + 5).unwrap_or(b"");
        let mut code = 0;
        for digit in digits {
            let value = char::from(*digit).to_digit(16);
            code = code << 4 | value.ok_or_else(|| self.wrong("no escape"))?;
        }
        if digits.is_empty() {
            return Err(self.wrong("no escape"));
        }
        self.at += 5;
        Ok(code)
    }
}

fn digit(byte: u8) -> i32 {
    i32::from(byte - b'0')
}

/// The number of these parts: exact where it has up to 15 digits and a moderate exponent, otherwise
/// within a few units of the last place. The standard library's parser is exact always, at the price
/// of 16 KB in every program that reads JSON.
fn float(negative: bool, whole: &str, fraction: &str, exponent: i32) -> f64 {
    let mut mantissa = 0u64;
    let mut exponent = exponent.saturating_sub(fraction.len() as i32);
    for byte in whole.bytes().chain(fraction.bytes()) {
        if mantissa < u64::MAX / 10 - 1 {
            mantissa = mantissa * 10 + digit(byte) as u64;
        } else {
            exponent = exponent.saturating_add(1);
        }
    }
    let mut value = mantissa as f64;
    while exponent != 0 && value != 0.0 && value.is_finite() {
        // Powers of ten up to 22 are exact, and so is the first step's quotient or product.
        let step = exponent.unsigned_abs().min(22);
        let power = (0..step).fold(1.0, |power, _| power * 10.0);
        value = if exponent < 0 { value / power } else { value * power };
        exponent -= exponent.signum() * step as i32;
    }
    if negative {
        -value
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn every_kind_of_value_is_read() {
        let text =
            r#" {"a": [1, -2.5e1, 18446744073709551615, true, null], "b": {"c": "d"}, "e": []} "#;
        let value = decode(text.as_bytes()).unwrap();
        let a = value.get("a").unwrap().as_array().unwrap();
        assert_eq!(a[..2], [Value::Int(1), Value::Float(-25.0)]);
        assert_eq!(a[2..], [Value::UInt(u64::MAX), Value::Bool(true), Value::Nil]);
        assert_eq!(value.get("b").unwrap().get("c").unwrap().as_str(), Some("d"));
        assert_eq!(value.get("e"), Some(&Value::Array(vec![])));
        assert_eq!(decode(encode(&value).as_bytes()).unwrap(), value);
    }

    #[test]
    fn numbers_are_what_they_say() {
        let short =
            ["0.1", "-0.7", "1e-3", "2.5E+2", "123456.789", "1e22", "-0.0", "9.5e-22", "0e9"];
        for text in short {
            assert_eq!(decode(text.as_bytes()).unwrap(), Value::Float(text.parse().unwrap()));
        }
        let long =
            ["3.141592653589793238462643383", "1e300", "-5e-300", "123456789012345678901234"];
        for text in long {
            let expected: f64 = text.parse().unwrap();
            let value = decode(text.as_bytes()).unwrap().as_f64().unwrap();
            assert!((value / expected - 1.0).abs() < 1e-14, "{}: {}", text, value);
        }
        assert_eq!(decode(b"1e99999999999").unwrap(), Value::Float(f64::INFINITY));
        assert_eq!(decode(b"1e-99999999999").unwrap(), Value::Float(0.0));
    }

    #[test]
    fn strings_escape_both_ways() {
        let text = "\"q\" \\ / \u{8}\u{c}\n\r\t\u{1} \u{e9} \u{1f600}";
        assert_eq!(decode(quote(text).as_bytes()).unwrap(), Value::Str(text.to_string()));
        let escaped = br#""\u00e9\ud83d\ude00\/\ud83d!\ud83d\u0041""#;
        let expected = "\u{e9}\u{1f600}/\u{fffd}!\u{fffd}A";
        assert_eq!(decode(escaped).unwrap(), Value::Str(expected.to_string()));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let texts: [&[u8]; 21] = [
            b"",
            b"{",
            b"[1,]",
            b"[1 2]",
            b"{\"a\" 1}",
            b"{1: 2}",
            b"\"a",
            b"\"\\x\"",
            b"\"\\u12\"",
            b"01",
            b"-",
            b"1.",
            b".5",
            b"1e",
            b"+1",
            b"1 2",
            b"nul",
            b"\"\n\"",
            b"\xff",
            b"\"\\u\"",
            b"'a'",
        ];
        for text in texts {
            assert!(decode(text).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!(decode(&[b'['; 100]).unwrap_err().what, "nested too deeply");
    }
}
