//! MessagePack, as much of it as the ABI speaks (all but extension types).
//!
//! ```
//! use symphony::{msgpack, Value};
//!
//! let mut out = msgpack::Writer::new();
//! out.map(1).str("top").uint(3);
//! assert_eq!(out.bytes(), b"\x81\xa3top\x03");
//! let value = msgpack::decode(out.bytes()).unwrap();
//! assert_eq!(value.get("top").and_then(Value::as_u64), Some(3));
//! ```

use crate::value::{DecodeError, Value, DEPTH_MAX};
use alloc::string::String;
use alloc::vec::Vec;

/// Appends values to a buffer. The caller keeps count: `map(2)` wants two keys and two values.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// An empty buffer.
    pub const fn new() -> Writer {
        Writer { out: Vec::new() }
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Writes nil.
    pub fn nil(&mut self) -> &mut Writer {
        self.out.push(0xc0);
        self
    }

    /// Writes true or false.
    pub fn bool(&mut self, truth: bool) -> &mut Writer {
        self.out.push(0xc2 | u8::from(truth));
        self
    }

    /// Writes a whole number that is not negative.
    pub fn uint(&mut self, n: u64) -> &mut Writer {
        match n {
            0..=0x7f => self.out.push(n as u8),
            0x80..=0xff => self.tagged(0xcc, &(n as u8).to_be_bytes()),
            0x100..=0xffff => self.tagged(0xcd, &(n as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(n as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &n.to_be_bytes()),
        }
        self
    }

    /// Writes a whole number.
    pub fn int(&mut self, n: i64) -> &mut Writer {
        if n >= 0 {
            return self.uint(n as u64);
        }
        if n >= -32 {
            self.out.push(n as u8);
        } else if let Ok(n) = i8::try_from(n) {
            self.tagged(0xd0, &n.to_be_bytes());
        } else if let Ok(n) = i16::try_from(n) {
            self.tagged(0xd1, &n.to_be_bytes());
        } else if let Ok(n) = i32::try_from(n) {
            self.tagged(0xd2, &n.to_be_bytes());
        } else {
            self.tagged(0xd3, &n.to_be_bytes());
        }
        self
    }

    /// Writes a number of 32 bits.
    pub fn f32(&mut self, x: f32) -> &mut Writer {
        self.tagged(0xca, &x.to_be_bytes());
        self
    }

    /// Writes a number of 64 bits.
    pub fn f64(&mut self, x: f64) -> &mut Writer {
        self.tagged(0xcb, &x.to_be_bytes());
        self
    }

    /// Writes text.
    pub fn str(&mut self, text: &str) -> &mut Writer {
        if text.len() < 32 {
            self.out.push(0xa0 | text.len() as u8);
        } else {
            self.sized([0xd9, 0xda, 0xdb], text.len());
        }
        self.out.extend_from_slice(text.as_bytes());
        self
    }

    /// Writes bytes.
    pub fn bin(&mut self, bytes: &[u8]) -> &mut Writer {
        self.sized([0xc4, 0xc5, 0xc6], bytes.len());
        self.out.extend_from_slice(bytes);
        self
    }

    /// Begins a list of `count` values.
    pub fn array(&mut self, count: usize) -> &mut Writer {
        self.container(0x90, [0xdc, 0xdd], count);
        self
    }

    /// Begins a map of `count` pairs, key and value in turn.
    pub fn map(&mut self, count: usize) -> &mut Writer {
        self.container(0x80, [0xde, 0xdf], count);
        self
    }

    /// Writes a whole value.
    pub fn value(&mut self, value: &Value) -> &mut Writer {
        match value {
            Value::Nil => self.nil(),
            Value::Bool(truth) => self.bool(*truth),
            Value::Int(n) => self.int(*n),
            Value::UInt(n) => self.uint(*n),
            Value::Float(x) => self.f64(*x),
            Value::Str(text) => self.str(text),
            Value::Bin(bytes) => self.bin(bytes),
            Value::Array(items) => items.iter().fold(self.array(items.len()), Writer::value),
            Value::Map(pairs) => {
                pairs.iter().fold(self.map(pairs.len()), |out, (k, v)| out.value(k).value(v))
            }
        }
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.out.push(tag);
        self.out.extend_from_slice(bytes);
    }

    fn sized(&mut self, tags: [u8; 3], length: usize) {
        match length {
            0..=0xff => self.tagged(tags[0], &[length as u8]),
            0x100..=0xffff => self.tagged(tags[1], &(length as u16).to_be_bytes()),
            _ => self.tagged(tags[2], &(length as u32).to_be_bytes()),
        }
    }

    fn container(&mut self, small: u8, tags: [u8; 2], count: usize) {
        match count {
            0..=0xf => self.out.push(small | count as u8),
            0x10..=0xffff => self.tagged(tags[0], &(count as u16).to_be_bytes()),
            _ => self.tagged(tags[1], &(count as u32).to_be_bytes()),
        }
    }
}

/// The bytes of a value.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Writer::new();
    out.value(value);
    out.into_bytes()
}

/// The one value in `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut reader = Reader { bytes, at: 0 };
    let value = reader.value(DEPTH_MAX)?;
    if reader.at < bytes.len() {
        return Err(reader.wrong("more than one value"));
    }
    Ok(value)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.at }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or_else(|| self.wrong("the value is cut short"))?;
        self.at += length;
        Ok(taken)
    }

    /// A big-endian number of `length` bytes.
    fn number(&mut self, length: usize) -> Result<u64, DecodeError> {
        Ok(self.take(length)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let tag = self.number(1)? as u8;
        Ok(match tag {
            0x00..=0x7f => Value::Int(i64::from(tag)),
            0x80..=0x8f => self.map(u64::from(tag & 0xf), depth)?,
            0x90..=0x9f => self.array(u64::from(tag & 0xf), depth)?,
            0xa0..=0xbf => self.str(u64::from(tag & 0x1f))?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(tag == 0xc3),
            0xc4..=0xc6 => {
                let length = self.number(1 << (tag - 0xc4))?;
                Value::Bin(self.take(length as usize)?.to_vec())
            }
            0xca => Value::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => Value::Float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => {
                let n = self.number(1 << (tag - 0xcc))?;
                i64::try_from(n).map_or(Value::UInt(n), Value::Int)
            }
            0xd0 => Value::Int(i64::from(self.number(1)? as i8)),
            0xd1 => Value::Int(i64::from(self.number(2)? as i16)),
            0xd2 => Value::Int(i64::from(self.number(4)? as i32)),
            0xd3 => Value::Int(self.number(8)? as i64),
            0xd9..=0xdb => {
                let length = self.number(1 << (tag - 0xd9))?;
                self.str(length)?
            }
            0xdc | 0xdd => {
                let count = self.number(2 << (tag - 0xdc))?;
                self.array(count, depth)?
            }
            0xde | 0xdf => {
                let count = self.number(2 << (tag - 0xde))?;
                self.map(count, depth)?
            }
            0xe0..=0xff => Value::Int(i64::from(tag as i8)),
            _ => return Err(self.wrong("an extension type")),
        })
    }

    fn str(&mut self, length: u64) -> Result<Value, DecodeError> {
        let bytes = self.take(length as usize)?;
        match core::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::Str(String::from(text))),
            Err(_) => Err(self.wrong("text is not UTF-8")),
        }
    }

    // Lists grow as their items come: a forged count must not reserve memory.
    fn array(&mut self, count: u64, depth: usize) -> Result<Value, DecodeError> {
        let depth = depth.checked_sub(1).ok_or_else(|| self.wrong("nested too deeply"))?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.value(depth)?);
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, count: u64, depth: usize) -> Result<Value, DecodeError> {
        let depth = depth.checked_sub(1).ok_or_else(|| self.wrong("nested too deeply"))?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            let key = self.value(depth)?;
            pairs.push((key, self.value(depth)?));
        }
        Ok(Value::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn same(value: Value) {
        assert_eq!(decode(&encode(&value)).unwrap(), value);
    }

    #[test]
    fn every_size_of_number_survives() {
        for shift in 0..64 {
            for offset in [-1i64, 0, 1] {
                let n = (1u64 << shift).wrapping_add(offset as u64);
                same(i64::try_from(n).map_or(Value::UInt(n), Value::Int));
                same(Value::Int((n as i64).wrapping_neg()));
            }
        }
        same(Value::Float(-0.1));
        same(Value::Float(f64::INFINITY));
    }

    #[test]
    fn every_size_of_text_bytes_list_and_map_survives() {
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
            same(Value::Str("x".repeat(length)));
            same(Value::Bin(vec![7; length]));
            same(Value::Array(vec![Value::Nil; length]));
            let pairs = (0..length).map(|i| (Value::Int(i as i64), Value::Bool(i % 2 == 0)));
            same(Value::Map(pairs.collect()));
        }
    }

    #[test]
    fn numbers_take_the_shortest_form() {
        let mut out = Writer::new();
        out.uint(127).uint(128).int(-32).int(-33).f32(1.0).nil();
        assert_eq!(out.bytes(), b"\x7f\xcc\x80\xe0\xd0\xdf\xca\x3f\x80\x00\x00\xc0");
    }

    #[test]
    fn what_is_broken_is_refused() {
        let wrong = |bytes: &[u8]| decode(bytes).unwrap_err().what.to_string();
        assert_eq!(wrong(b""), "the value is cut short");
        assert_eq!(wrong(b"\xa3ab"), "the value is cut short");
        assert_eq!(wrong(b"\xdd\xff\xff\xff\xff"), "the value is cut short");
        assert_eq!(wrong(b"\xc6\xff\xff\xff\xff"), "the value is cut short");
        assert_eq!(wrong(b"\x01\x02"), "more than one value");
        assert_eq!(wrong(b"\xa1\xff"), "text is not UTF-8");
        assert_eq!(wrong(b"\xc7\x00\x00"), "an extension type");
        assert_eq!(wrong(&[0x91; 100]), "nested too deeply");
    }
}
