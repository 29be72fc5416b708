//! One call of a tool in a model's answer: the JSON object {"name": .., "arguments": ..}, or a name, a
//! marker and the arguments' object. It is read a character at a time. Its arguments are given on as
//! they are written.

/// Where the object is after a character.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    Open,
    Closed,
    /// It is no call.
    Broken,
}

/// Keys with which a call may begin, where nothing before it says that it is one.
const KNOWN_KEYS: [&str; 5] = ["name", "arguments", "parameters", "type", "id"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    /// In the name, where a marker separates it from the arguments.
    Head,
    /// Before a key, or the object's end.
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    /// Behind a value.
    Comma,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Name,
    Arguments,
    Other,
}

/// Follows one JSON value to its end.
#[derive(Default)]
struct Scan {
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Scan {
    /// Whether the value has ended with this character, which is its last one.
    fn ends(&mut self, c: char) -> bool {
        if self.string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.string = false,
                _ => return false,
            }
            return c == '"' && !self.string && self.depth == 0;
        }
        match c {
            '"' => self.string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => (),
        }
        false
    }
}

pub struct Call {
    place: Place,
    of: Of,
    scan: Scan,
    /// A scalar value ends before the character that follows it.
    scalar: bool,
    key: String,
    /// The name as JSON, then as text once it is whole.
    name: String,
    named: bool,
    /// Arguments that came before the name, or were not taken yet.
    arguments: String,
    argued: bool,
    /// Whether only known keys are those of a call.
    wary: bool,
    /// What stands between name and arguments; empty: the call is one object.
    marker: String,
}

impl Call {
    pub fn new(wary: bool, marker: &str) -> Call {
        Call {
            place: if marker.is_empty() { Place::Before } else { Place::Head },
            of: Of::Other,
            scan: Scan::default(),
            scalar: false,
            key: String::new(),
            name: String::new(),
            named: false,
            arguments: String::new(),
            argued: false,
            wary,
            marker: marker.into(),
        }
    }

    /// The name, once it is known.
    pub fn name(&self) -> Option<&str> {
        self.named.then_some(self.name.as_str())
    }

    /// The arguments' text that has not been taken; nothing before the name is known.
    pub fn take_arguments(&mut self) -> String {
        if self.named {
            core::mem::take(&mut self.arguments)
        } else {
            String::new()
        }
    }

    pub fn read(&mut self, c: char) -> Progress {
        let blank = c.is_ascii_whitespace();
        match self.place {
            Place::Before if blank => (),
            Place::Before if c == '{' => self.place = Place::Key,
            Place::Head => return self.read_head(c),
            Place::Key if blank || c == ',' => (),
            Place::Key if c == '"' => {
                self.key.clear();
                self.place = Place::InKey;
            }
            Place::Key | Place::Comma if c == '}' => return self.close(),
            Place::InKey if c == '"' => return self.keyed(),
            Place::InKey => self.key.push(c),
            Place::Colon if blank => (),
            Place::Colon if c == ':' => self.place = Place::Value,
            Place::Value if blank => (),
            Place::Value => return self.begin(c),
            Place::InValue => return self.go_on(c),
            Place::Comma if blank => (),
            Place::Comma if c == ',' => self.place = Place::Key,
            _ => return Progress::Broken,
        }
        Progress::Open
    }

    /// Reads a name up to the marker. Between them may be more in brackets, such as the call's id.
    fn read_head(&mut self, c: char) -> Progress {
        if c.is_ascii_whitespace() && self.name.is_empty() {
            return Progress::Open;
        }
        self.name.push(c);
        if !self.name.ends_with(self.marker.as_str()) {
            let broken = c.is_ascii_whitespace() || matches!(c, '{' | '"');
            return if broken { Progress::Broken } else { Progress::Open };
        }
        let end = self.name.find('[').unwrap_or(0);
        self.name.truncate(end);
        self.named = end > 0;
        self.of = Of::Arguments;
        self.place = Place::Value;
        if self.named {
            Progress::Open
        } else {
            Progress::Broken
        }
    }

    fn keyed(&mut self) -> Progress {
        self.place = Place::Colon;
        self.of = match self.key.as_str() {
            "name" if !self.named => Of::Name,
            "arguments" | "parameters" if !self.argued => Of::Arguments,
            _ => Of::Other,
        };
        if self.wary && !KNOWN_KEYS.contains(&self.key.as_str()) {
            return Progress::Broken;
        }
        Progress::Open
    }

    fn begin(&mut self, c: char) -> Progress {
        if self.of == Of::Name && c != '"' {
            return Progress::Broken;
        }
        if !self.marker.is_empty() && c != '{' {
            return self.close();
        }
        self.scan = Scan::default();
        self.scalar = !matches!(c, '"' | '{' | '[');
        self.place = Place::InValue;
        self.argued |= self.of == Of::Arguments;
        self.go_on(c)
    }

    fn go_on(&mut self, c: char) -> Progress {
        if self.scalar && matches!(c, ',' | '}') {
            self.place = Place::Comma;
            return self.read(c);
        }
        match self.of {
            Of::Name => self.name.push(c),
            Of::Arguments if !(self.scalar && c.is_ascii_whitespace()) => self.arguments.push(c),
            _ => (),
        }
        if !self.scan.ends(c) {
            return Progress::Open;
        }
        self.place = Place::Comma;
        if !self.marker.is_empty() {
            return Progress::Closed;
        }
        if self.of != Of::Name {
            return Progress::Open;
        }
        match symphony::json::decode(self.name.as_bytes()) {
            Ok(symphony::Value::Str(name)) => {
                self.name = name;
                self.named = true;
                Progress::Open
            }
            _ => Progress::Broken,
        }
    }

    fn close(&mut self) -> Progress {
        if !self.named {
            return Progress::Broken;
        }
        if !self.argued {
            self.arguments.push_str("{}");
        }
        Progress::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, wary: bool) -> (Option<String>, String, Progress) {
        let mut call = Call::new(wary, "");
        let mut arguments = String::new();
        let mut progress = Progress::Open;
        for c in text.chars() {
            progress = call.read(c);
            if progress == Progress::Broken {
                break;
            }
            arguments.push_str(&call.take_arguments());
        }
        (call.name().map(String::from), arguments, progress)
    }

    #[test]
    fn call_with_keys_in_any_order_has_name_and_arguments() {
        let arguments = r#"{"a": "}\"{", "b": [1, {"c": null}]}"#;
        for text in [
            format!(r#"{{"name": "f", "arguments": {}}}"#, arguments),
            format!(r#" {{ "parameters" : {} , "name":"f"}}"#, arguments),
            format!(r#"{{"id": 7, "name": "\u0066", "arguments": {}, "x": [1]}}"#, arguments),
        ] {
            assert_eq!(read(&text, false), (Some("f".into()), arguments.into(), Progress::Closed));
        }
    }

    #[test]
    fn call_without_arguments_has_none() {
        let (name, arguments, progress) = read(r#"{"name": "f"}"#, false);
        assert_eq!((name.as_deref(), arguments.as_str()), (Some("f"), "{}"));
        assert_eq!(progress, Progress::Closed);
        let (_, arguments, _) = read(r#"{"name": "f", "arguments": null }"#, false);
        assert_eq!(arguments, "null");
    }

    #[test]
    fn object_that_is_no_call_is_broken() {
        for text in ["[", "x", r#"{"name": 5"#, r#"{"a": 1}"#, r#"{"name" "#, r#"{x"#] {
            let text = if text == r#"{"name" "# { r#"{"name" x"# } else { text };
            assert_eq!(read(text, false).2, Progress::Broken, "{}", text);
        }
        assert_eq!(read(r#"{"city""#, true).2, Progress::Broken);
        assert_eq!(read(r#"{"city""#, false).2, Progress::Open);
    }
}
