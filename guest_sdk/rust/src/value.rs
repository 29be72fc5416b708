//! Structured values: what MessagePack and JSON have in common.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// How deep values may nest in what is decoded.
pub(crate) const DEPTH_MAX: usize = 64;

/// A structured value, decoded from or encoded to [`crate::msgpack`] or [`crate::json`].
///
/// ```
/// use symphony::{json, Value};
///
/// let value = json::decode(br#"{"prompt": "def f", "max_tokens": 8}"#).unwrap();
/// assert_eq!(value.get("prompt").and_then(Value::as_str), Some("def f"));
/// assert_eq!(value.get("max_tokens").and_then(Value::as_u64), Some(8));
/// assert_eq!(value.get("seed"), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: `nil`, `null`.
    Nil,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number above `i64::MAX`.
    UInt(u64),
    /// Any other number.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes; only MessagePack has them.
    Bin(Vec<u8>),
    /// A list.
    Array(Vec<Value>),
    /// Pairs of key and value, in the order in which they came.
    Map(Vec<(Value, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Str(text.into())
    }
}

impl Value {
    /// A map with text keys.
    pub fn object<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
        Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// The value under a text key of a map; `None` for anything but a map.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Map(pairs) => pairs.iter().find(|(k, _)| k.as_str() == Some(key)).map(|p| &p.1),
            _ => None,
        }
    }

    /// The text, of text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The bytes, of bytes or text.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Bin(bytes) => Some(bytes),
            Value::Str(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The number, of a whole one that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Int(n) if *n >= 0 => Some(*n as u64),
            Value::UInt(n) => Some(*n),
            _ => None,
        }
    }

    /// The number, of a whole one that fits into 32 bits and is not negative.
    pub fn as_u32(&self) -> Option<u32> {
        self.as_u64().and_then(|n| u32::try_from(n).ok())
    }

    /// The number, of any whole one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The number, of any number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::UInt(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// The truth value, of one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The items, of a list.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs, of a map.
    pub fn as_map(&self) -> Option<&[(Value, Value)]> {
        match self {
            Value::Map(pairs) => Some(pairs),
            _ => None,
        }
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What is wrong.
    pub what: &'static str,
    /// Where, in bytes from the start.
    pub offset: usize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for DecodeError {}
