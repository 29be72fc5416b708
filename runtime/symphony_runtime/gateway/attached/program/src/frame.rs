//! Frames of the client: MessagePack that is read in place, without a copy and without recursion.

use std::fmt;

/// Keys of one call, at most.
const KEYS_MAX: usize = 8;

/// What is wrong with a frame as a whole. It ends the run: what follows could not be trusted.
#[derive(Debug, PartialEq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the frame is malformed: {}", self.0)
    }
}

/// A value of a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    Int(i64),
    Str(&'a str),
    Bin(&'a [u8]),
    /// A list or a map, as it came.
    Nested(&'a [u8]),
    /// Nil, a truth value or a float: no call takes one.
    Other,
}

/// One call: `[number, name, {key: value}]`.
#[derive(Debug)]
pub struct Call<'a> {
    /// The client's number for it; 0: no answer is wanted.
    pub number: u64,
    pub name: &'a str,
    keys: [(&'a str, Field<'a>); KEYS_MAX],
    count: usize,
}

/// Why an argument is refused.
#[derive(Debug, PartialEq)]
pub struct Refused(pub String);

impl<'a> Call<'a> {
    /// Takes an argument out.
    fn take(&mut self, key: &str) -> Option<Field<'a>> {
        let at = self.keys[..self.count].iter().position(|(known, _)| *known == key)?;
        let found = self.keys[at].1;
        self.count -= 1;
        self.keys[at] = self.keys[self.count];
        Some(found)
    }

    fn wrong(&self, key: &str, wanted: &str) -> Refused {
        Refused(format!("{}: `{}` must be {}", self.name, key, wanted))
    }

    fn lacking(&self, key: &str) -> Refused {
        Refused(format!("{} needs the key `{}`", self.name, key))
    }

    /// A whole number within a range.
    pub fn int_or(&mut self, key: &str, usual: i64, least: i64, most: i64) -> Result<i64, Refused> {
        match self.take(key) {
            None => Ok(usual),
            Some(Field::Int(n)) if (least..=most).contains(&n) => Ok(n),
            Some(_) => {
                Err(self.wrong(key, &format!("a whole number from {} to {}", least, most)))
            }
        }
    }

    pub fn u32(&mut self, key: &str) -> Result<u32, Refused> {
        match self.int_or(key, -1, 0, i64::from(u32::MAX))? {
            -1 => Err(self.lacking(key)),
            n => Ok(n as u32),
        }
    }

    /// A handle or a number that the ABI takes as an i32.
    pub fn i32(&mut self, key: &str) -> Result<i32, Refused> {
        match self.int_or(key, -1, 0, i64::from(i32::MAX))? {
            -1 => Err(self.lacking(key)),
            n => Ok(n as i32),
        }
    }

    pub fn text(&mut self, key: &str) -> Result<&'a str, Refused> {
        match self.take(key) {
            Some(Field::Str(text)) => Ok(text),
            Some(_) => Err(self.wrong(key, "text")),
            None => Err(self.lacking(key)),
        }
    }

    pub fn text_or(&mut self, key: &str) -> Result<Option<&'a str>, Refused> {
        match self.take(key) {
            Some(Field::Str(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "text")),
            None => Ok(None),
        }
    }

    /// Bytes; empty where the key is missing.
    pub fn bytes(&mut self, key: &str) -> Result<&'a [u8], Refused> {
        match self.take(key) {
            Some(Field::Bin(bytes)) => Ok(bytes),
            Some(Field::Str(text)) => Ok(text.as_bytes()),
            Some(_) => Err(self.wrong(key, "bytes")),
            None => Ok(&[]),
        }
    }

    /// Little-endian u32 numbers.
    pub fn words(&mut self, key: &str) -> Result<Vec<u32>, Refused> {
        let bytes = self.bytes(key)?;
        if bytes.len() % 4 != 0 {
            return Err(self.wrong(key, "bytes, four for each number"));
        }
        let word = |part: &[u8]| u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        Ok(bytes.chunks_exact(4).map(word).collect())
    }

    /// A list as it came; empty where the key is missing.
    pub fn nested(&mut self, key: &str) -> Result<&'a [u8], Refused> {
        match self.take(key) {
            Some(Field::Nested(bytes)) => Ok(bytes),
            Some(_) => Err(self.wrong(key, "a list")),
            None => Ok(&[]),
        }
    }

    /// Whether all keys were taken: else the call is refused by the name of one.
    pub fn end(&self) -> Result<(), Refused> {
        match self.keys[..self.count].first() {
            Some((key, _)) => Err(Refused(format!("{} has no key `{}`", self.name, key))),
            None => Ok(()),
        }
    }
}

/// The calls of a frame, one after the other.
pub struct Frame<'a> {
    bytes: &'a [u8],
    left: usize,
}

enum Head<'a> {
    Field(Field<'a>),
    Array(usize),
    Map(usize),
}

impl<'a> Frame<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let mut frame = Frame { bytes, left: 0 };
        frame.left = frame.array("it is no list of calls")?;
        Ok(frame)
    }

    /// The next call; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Call<'a>>, Malformed> {
        if self.left == 0 {
            let rest = self.bytes.is_empty();
            return if rest { Ok(None) } else { Err(Malformed("bytes follow the last call")) };
        }
        self.left -= 1;
        if self.array("a call is [number, name, arguments]")? != 3 {
            return Err(Malformed("a call is [number, name, arguments]"));
        }
        let number = match self.head()? {
            Head::Field(Field::Int(n)) if n >= 0 => n as u64,
            _ => return Err(Malformed("a call's number is a whole number from 0 to 2^63 - 1")),
        };
        let name = self.str("a call's name is text")?;
        let count = match self.head()? {
            Head::Map(count) if count <= KEYS_MAX => count,
            Head::Map(_) => return Err(Malformed("a call has at most 8 keys")),
            _ => return Err(Malformed("a call's arguments are a map")),
        };
        let mut keys = [("", Field::Other); KEYS_MAX];
        for at in 0..count {
            let key = self.str("a call's keys are text")?;
            if keys[..at].iter().any(|(known, _)| *known == key) {
                return Err(Malformed("a call has a key twice"));
            }
            keys[at] = (key, self.field()?);
        }
        Ok(Some(Call { number, name, keys, count }))
    }

    fn array(&mut self, wrong: &'static str) -> Result<usize, Malformed> {
        match self.head()? {
            Head::Array(count) => Ok(count),
            _ => Err(Malformed(wrong)),
        }
    }

    fn str(&mut self, wrong: &'static str) -> Result<&'a str, Malformed> {
        match self.head()? {
            Head::Field(Field::Str(text)) => Ok(text),
            _ => Err(Malformed(wrong)),
        }
    }

    fn field(&mut self) -> Result<Field<'a>, Malformed> {
        let from = self.bytes;
        let mut left = match self.head()? {
            Head::Field(field) => return Ok(field),
            Head::Array(count) => count as u64,
            Head::Map(count) => 2 * count as u64,
        };
        while left > 0 {
            // Each value has a byte at least.
            if left > self.bytes.len() as u64 {
                return Err(Malformed("it is cut short"));
            }
            left -= 1;
            left += match self.head()? {
                Head::Field(_) => 0,
                Head::Array(count) => count as u64,
                Head::Map(count) => 2 * count as u64,
            };
        }
        Ok(Field::Nested(&from[..from.len() - self.bytes.len()]))
    }

    fn head(&mut self) -> Result<Head<'a>, Malformed> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            0x00..=0x7f => Head::Field(Field::Int(i64::from(tag))),
            0x80..=0x8f => Head::Map(usize::from(tag & 0xf)),
            0x90..=0x9f => Head::Array(usize::from(tag & 0xf)),
            0xa0..=0xbf => self.text(usize::from(tag & 0x1f))?,
            0xc0 | 0xc2 | 0xc3 => Head::Field(Field::Other),
            0xc4..=0xc6 => {
                let length = self.number(1 << (tag - 0xc4))? as usize;
                Head::Field(Field::Bin(self.take(length)?))
            }
            0xca => self.skip(4)?,
            0xcb => self.skip(8)?,
            0xcc..=0xcf => {
                let number = self.number(1 << (tag - 0xcc))?;
                let known = i64::try_from(number).map_err(|_| Malformed("a number past 2^63"))?;
                Head::Field(Field::Int(known))
            }
            0xd0 => Head::Field(Field::Int(i64::from(self.number(1)? as i8))),
            0xd1 => Head::Field(Field::Int(i64::from(self.number(2)? as i16))),
            0xd2 => Head::Field(Field::Int(i64::from(self.number(4)? as i32))),
            0xd3 => Head::Field(Field::Int(self.number(8)? as i64)),
            0xd9..=0xdb => {
                let length = self.number(1 << (tag - 0xd9))? as usize;
                self.text(length)?
            }
            0xdc => Head::Array(self.number(2)? as usize),
            0xdd => Head::Array(self.number(4)? as usize),
            0xde => Head::Map(self.number(2)? as usize),
            0xdf => Head::Map(self.number(4)? as usize),
            0xe0..=0xff => Head::Field(Field::Int(i64::from(tag as i8))),
            _ => return Err(Malformed("an extension type")),
        })
    }

    fn skip(&mut self, length: usize) -> Result<Head<'a>, Malformed> {
        self.take(length)?;
        Ok(Head::Field(Field::Other))
    }

    fn text(&mut self, length: usize) -> Result<Head<'a>, Malformed> {
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => Ok(Head::Field(Field::Str(text))),
            Err(_) => Err(Malformed("text that is no UTF-8")),
        }
    }

    fn number(&mut self, length: usize) -> Result<u64, Malformed> {
        Ok(self.take(length)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        if length > self.bytes.len() {
            return Err(Malformed("it is cut short"));
        }
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
