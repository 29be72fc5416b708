//! An answer's text split into what it is: reasoning, content and calls of tools.
//!
//! The gateway says how the model's family writes them; text comes in pieces of any size. Text that
//! may be the beginning of a marker is held until it is known, and so are spaces before one.

use crate::call::{Call, Progress};
use symphony::Value;

/// How a family writes calls, and its reasoning.
#[derive(Default)]
pub struct Format {
    /// Opens a call, or a list of calls.
    begin: String,
    end: String,
    /// Stands between a call's name and its arguments, where a call is no object.
    args: String,
    /// Whether `begin` opens a list of calls.
    listed: bool,
    /// Whether calls may stand at the answer's beginning without `begin`.
    bare: bool,
    /// The tools, where `bare`: an object that names another one is text.
    names: Vec<String>,
    /// Whether the answer ends with its first call.
    single: bool,
    think: Option<(String, String)>,
}

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Content(String),
    Reasoning(String),
    /// A call of this tool begins; calls are counted from 0.
    Call(u16, String),
    Arguments(u16, String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but spaces has come: reasoning or a bare call may begin.
    Start,
    Thinking,
    Content,
    /// Before a call's object, behind what opens it, or within the object.
    Call,
    /// Behind a call.
    After,
}

pub struct Channels {
    state: State,
    /// Text that was not read, or whose meaning is not known yet.
    held: String,
    call: Call,
    /// The call's text so far, with what opened it, until the call is told.
    raw: String,
    told: bool,
    /// Whether the call has no marker before it.
    wary: bool,
    /// Whether the call is within a list.
    in_list: bool,
    /// Whether a marker that closes the call is still to come.
    closing: bool,
    /// Spaces before what comes next are the format's own.
    drops_space: bool,
    /// Whether reasoning may still begin.
    may_think: bool,
    count: u16,
    /// Bytes of text so far, and of those up to the reasoning's end.
    fed: usize,
    reasoned: usize,
    /// The answer has ended; what follows does not count.
    pub over: bool,
}

impl Format {
    pub fn of(value: &Value) -> Option<Format> {
        let calls = value.get("calls");
        let think = value.get("think").and_then(Value::as_array);
        if calls.is_none() && think.is_none() {
            return None;
        }
        let text = |key| calls.and_then(|c| c.get(key)).and_then(Value::as_str).unwrap_or("");
        let flag = |key| calls.and_then(|c| c.get(key)).and_then(Value::as_bool).unwrap_or(false);
        let names = calls.and_then(|c| c.get("names")).and_then(Value::as_array).unwrap_or(&[]);
        Some(Format {
            begin: text("begin").into(),
            end: text("end").into(),
            args: text("args").into(),
            listed: flag("listed"),
            bare: flag("bare"),
            names: names.iter().filter_map(Value::as_str).map(String::from).collect(),
            single: flag("single"),
            think: think.and_then(|pair| match pair {
                [begin, end] => Some((begin.as_str()?.into(), end.as_str()?.into())),
                _ => None,
            }),
        })
    }

    /// The marker that ends reasoning, where the model has any.
    pub fn think_end(&self) -> Option<&str> {
        self.think.as_ref().map(|(_, end)| end.as_str())
    }

    /// Whether a prompt ends with the beginning of reasoning.
    pub fn thinks_after(&self, prompt: &str) -> bool {
        self.think.as_ref().map_or(false, |(begin, _)| prompt.trim_end().ends_with(begin.as_str()))
    }

    /// Whether the answer ends with its first call.
    pub fn single(&self) -> bool {
        self.single
    }
}

impl Channels {
    /// `thinking`: the prompt has begun the reasoning.
    pub fn new(thinking: bool) -> Channels {
        Channels {
            state: if thinking { State::Thinking } else { State::Start },
            held: String::new(),
            call: Call::new(false, ""),
            raw: String::new(),
            told: false,
            wary: false,
            in_list: false,
            closing: false,
            drops_space: thinking,
            may_think: !thinking,
            count: 0,
            fed: 0,
            reasoned: 0,
            over: false,
        }
    }

    /// Whether the answer has called a tool.
    pub fn called(&self) -> bool {
        self.count > 0
    }

    pub fn thinks(&self) -> bool {
        self.state == State::Thinking
    }

    /// Bytes of the answer's text up to the end of its reasoning; `None`: that has not ended.
    pub fn reasoned(&self) -> Option<usize> {
        if self.thinks() {
            None
        } else {
            Some(self.reasoned)
        }
    }

    /// Splits the next text.
    pub fn feed(&mut self, text: &str, format: &Format, out: &mut Vec<Part>) {
        self.fed += text.len();
        self.held.push_str(text);
        while !self.over && self.step(format, out) {}
    }

    /// The answer's end: what was held is what it seems.
    pub fn finish(&mut self, format: &Format, out: &mut Vec<Part>) {
        let rest = core::mem::take(&mut self.held);
        let cut_off = self.closing && format.end.starts_with(rest.trim());
        match self.state {
            _ if self.over || self.told && self.state == State::Call => (),
            State::After if cut_off || rest.trim().is_empty() => (),
            State::Call => say(out, Part::Content(core::mem::take(&mut self.raw) + &rest)),
            State::Thinking => say(out, Part::Reasoning(rest.trim_end().into())),
            State::After => say(out, Part::Content(rest.trim_start().into())),
            _ if self.drops_space => say(out, Part::Content(rest.trim_start().into())),
            _ => say(out, Part::Content(rest)),
        }
    }

    /// One step; `false`: it needs more text.
    fn step(&mut self, format: &Format, out: &mut Vec<Part>) -> bool {
        match self.state {
            State::Start => self.start(format),
            State::Thinking => self.think(format, out),
            State::Content => self.content(format, out),
            State::Call => self.read_call(format, out),
            State::After => self.after(format),
        }
    }

    fn start(&mut self, format: &Format) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        if let Some((begin, _)) = format.think.as_ref().filter(|_| self.may_think) {
            if let Some(rest) = text.strip_prefix(begin.as_str()) {
                self.held = rest.into();
                self.state = State::Thinking;
                self.drops_space = true;
                self.may_think = false;
                return true;
            }
            if begin.starts_with(text) {
                return false;
            }
        }
        self.may_think = false;
        if format.bare && text.starts_with('{') {
            self.begin_call(format, "", true);
        } else {
            self.state = State::Content;
        }
        true
    }

    fn think(&mut self, format: &Format, out: &mut Vec<Part>) -> bool {
        self.drop_space();
        let end = format.think_end().unwrap_or("");
        match self.held.find(end) {
            Some(at) => {
                say(out, Part::Reasoning(self.held[..at].trim_end().into()));
                self.held.drain(..at + end.len());
                self.reasoned = self.fed - self.held.len();
                self.state = State::Start;
                self.drops_space = true;
                true
            }
            None => {
                say(out, Part::Reasoning(self.release(end)));
                false
            }
        }
    }

    fn content(&mut self, format: &Format, out: &mut Vec<Part>) -> bool {
        self.drop_space();
        let begin = format.begin.as_str();
        if begin.is_empty() {
            say(out, Part::Content(core::mem::take(&mut self.held)));
            return false;
        }
        match self.held.find(begin) {
            Some(at) => {
                say(out, Part::Content(self.held[..at].trim_end().into()));
                self.held.drain(..at + begin.len());
                self.begin_call(format, begin, false);
                true
            }
            None => {
                say(out, Part::Content(self.release(begin)));
                false
            }
        }
    }

    fn begin_call(&mut self, format: &Format, opened: &str, wary: bool) {
        self.state = State::Call;
        self.call = Call::new(wary, &format.args);
        self.raw = opened.into();
        self.told = false;
        self.wary = wary;
    }

    fn read_call(&mut self, format: &Format, out: &mut Vec<Part>) -> bool {
        if format.listed && !self.in_list {
            let text = self.held.trim_start();
            match text.strip_prefix('[') {
                _ if text.is_empty() => return false,
                Some(rest) => {
                    self.raw.push_str(&self.held[..self.held.len() - rest.len()]);
                    self.held = rest.into();
                    self.in_list = true;
                }
                None => return self.give_up(out),
            }
        }
        let text = core::mem::take(&mut self.held);
        for (at, c) in text.char_indices() {
            let progress = self.call.read(c);
            if !self.told {
                self.raw.push(c);
                let known = match self.call.name() {
                    Some(name) if self.wary && !format.names.iter().any(|each| each == name) => {
                        Progress::Broken
                    }
                    Some(name) => {
                        out.push(Part::Call(self.count, name.into()));
                        self.count += 1;
                        self.told = true;
                        self.raw.clear();
                        Progress::Open
                    }
                    None => Progress::Open,
                };
                if progress == Progress::Broken || known == Progress::Broken {
                    self.held = text[at + c.len_utf8()..].into();
                    return self.give_up(out);
                }
            }
            if progress != Progress::Open {
                self.held = text[at + c.len_utf8()..].into();
                say(out, Part::Arguments(self.count - 1, self.call.take_arguments()));
                self.state = State::After;
                self.closing = !self.in_list && !format.end.is_empty();
                self.over = format.single;
                return true;
            }
        }
        if self.told {
            say(out, Part::Arguments(self.count - 1, self.call.take_arguments()));
        }
        false
    }

    /// What was read is no call: it is content, with what opened it.
    fn give_up(&mut self, out: &mut Vec<Part>) -> bool {
        say(out, Part::Content(core::mem::take(&mut self.raw)));
        self.state = State::Content;
        self.drops_space = false;
        self.in_list = false;
        true
    }

    /// Behind a call: its end, another one, or content.
    fn after(&mut self, format: &Format) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            self.held.clear();
            return false;
        }
        let expected = if self.closing { &format.end } else { &format.begin };
        let (first, list) = (text.as_bytes()[0], self.in_list);
        if list && first == b',' || !list && format.bare && matches!(first, b',' | b';') {
            self.held = text[1..].into();
            if list {
                self.begin_call(format, "", false);
            }
        } else if list && first == b']' {
            self.held = text[1..].into();
            self.in_list = false;
        } else if !list && !self.closing && format.bare && first == b'{' {
            self.held = text.into();
            self.begin_call(format, "", true);
        } else if let (false, false, Some(rest)) =
            (list, expected.is_empty(), text.strip_prefix(expected.as_str()))
        {
            self.held = rest.into();
            if !self.closing {
                self.begin_call(format, &format.begin, false);
            }
            self.closing = false;
        } else if !list && expected.starts_with(text) {
            return false;
        } else {
            self.state = State::Content;
            self.drops_space = true;
            self.closing = false;
            self.in_list = false;
        }
        true
    }

    fn drop_space(&mut self) {
        if self.drops_space {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            self.drops_space = self.held.is_empty();
        }
    }

    /// What is held without an end that may belong to a marker, and without spaces before it.
    fn release(&mut self, marker: &str) -> String {
        let longest = marker.len().min(self.held.len() + 1) - 1;
        let part = |n: &usize| self.held.as_bytes().ends_with(&marker.as_bytes()[..*n]);
        let kept = (1..=longest).rev().find(part).unwrap_or(0);
        let before = self.held[..self.held.len() - kept].trim_end().len();
        self.held.drain(..before).collect()
    }
}

/// Appends a part, to the last one where that is of its kind.
fn say(out: &mut Vec<Part>, part: Part) {
    match (out.last_mut(), &part) {
        (_, Part::Content(text) | Part::Reasoning(text) | Part::Arguments(_, text))
            if text.is_empty() => {}
        (Some(Part::Content(last)), Part::Content(text))
        | (Some(Part::Reasoning(last)), Part::Reasoning(text)) => last.push_str(text),
        (Some(Part::Arguments(a, last)), Part::Arguments(b, text)) if a == b => last.push_str(text),
        _ => out.push(part),
    }
}

#[cfg(test)]
mod tests;
