//! Tools: what the servers that the operator attached can do for a program.
//!
//! ```
//! # use symphony::{testing::Host, tool::Answer};
//! # let echo = |_: &_| Answer { ok: true, content: "rain".into() };
//! # Host::new().tool("weather.forecast", echo).run(|| symphony::block_on(async {
//! use symphony::{tool, Value};
//!
//! let place = Value::object([("place", "Ghent".into())]);
//! let answer = tool::call("weather.forecast", &place).await?;
//! assert!(answer.ok && answer.content == "rain");
//! for tool in tool::list()? {
//!     println!("{}: {}", tool.name, tool.description);
//! }
//! # symphony::Result::Ok(()) }).unwrap());
//! ```
//!
//! The program holds its KV while it waits; the server may use the room for others meanwhile. Several
//! calls may be under way at once. The import alone says that a program wants tools: one that calls
//! none does not have it.

use crate::error::{filled, Errno, Error, Result};
use crate::executor::Ticket;
use crate::msgpack::{self, Writer};
use crate::raw;
use crate::value::Value;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// A tool that the program may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its server's name, a dot, its own.
    pub name: String,
    /// What it does, for a model to read.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it did what it was asked for; else `content` says why not.
    pub ok: bool,
    /// Its answer as text.
    pub content: String,
}

/// Calls a tool; `arguments` is a map. `ENOENT`: there is no such tool for this program; `ETIMEDOUT`;
/// `EFBIG`: its answer is too long. Dropping the ticket ends the call.
#[track_caller]
pub fn call(name: &str, arguments: &Value) -> Ticket<Answer> {
    start(name, arguments, None)
}

/// Calls a tool that has to answer within a time.
#[track_caller]
pub fn call_within(name: &str, arguments: &Value, time: Duration) -> Ticket<Answer> {
    start(name, arguments, Some(time))
}

/// The tools that the program may call.
#[track_caller]
pub fn list() -> Result<Vec<Tool>> {
    let bytes = filled("tools", 4096, |ptr, cap| unsafe { raw::tools(ptr, cap) })?;
    let listed = msgpack::decode(&bytes).ok();
    let tools = listed.as_ref().and_then(Value::as_array).map(|tools| tools.iter().map(tool));
    tools.and_then(Iterator::collect).ok_or_else(|| Error::new("tools", Errno::EIO))
}

#[track_caller]
fn start(name: &str, arguments: &Value, time: Option<Duration>) -> Ticket<Answer> {
    let mut out = Writer::new();
    out.map(2 + usize::from(time.is_some()));
    out.str("name").str(name).str("arguments").value(arguments);
    if let Some(time) = time {
        out.str("timeout_ms").uint(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
    }
    let result = unsafe { raw::tool(out.bytes().as_ptr(), out.bytes().len()) };
    Ticket::named("tool", name, result, answer)
}

fn answer(bytes: &[u8], _: usize) -> Option<Answer> {
    let value = msgpack::decode(bytes).ok()?;
    let content = String::from(value.get("content")?.as_str()?);
    Some(Answer { ok: value.get("ok")?.as_bool()?, content })
}

fn tool(value: &Value) -> Option<Tool> {
    let text = |key| value.get(key).and_then(Value::as_str).map(String::from);
    let schema = value.get("schema")?.clone();
    Some(Tool { name: text("name")?, description: text("description")?, schema })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Host;
    use crate::{block_on, join_all, json};
    use alloc::format;

    fn arguments() -> Value {
        json::decode(br#"{"a": [1, "x"]}"#).unwrap()
    }

    fn echo(arguments: &Value) -> Answer {
        Answer { ok: true, content: json::encode(arguments) }
    }

    #[test]
    fn a_call_gives_the_tool_s_answer() {
        let host = Host::new().tool("t.echo", echo);
        let (answers, seen) = host.observe(|| {
            block_on(join_all([call("t.echo", &arguments()), call("t.none", &Value::Nil)]))
        });
        let answers = answers.unwrap();
        let content = String::from(r#"{"a":[1,"x"]}"#);
        assert_eq!(answers[0], Ok(Answer { ok: true, content }));
        assert_eq!(answers[1], Err(Error::new("tool", Errno::ENOENT)));
        assert_eq!(seen.tickets_left, 0);
    }

    #[test]
    fn tools_are_listed() {
        let names = (0..200).map(|i| format!("server.a_tool_with_a_long_name_{:03}", i));
        let host = names.fold(Host::new(), |host, name| host.tool(&name, echo));
        let tools = host.run(list).unwrap();
        assert_eq!(
            (tools.len(), tools[199].name.as_str()),
            (200, "server.a_tool_with_a_long_name_199")
        );
    }

    #[test]
    fn a_time_is_passed_on() {
        let slow = |_: &Value| Answer { ok: false, content: "never".into() };
        let host = Host::new().tool("t.slow", slow);
        let answer = host.run(|| call_within("t.slow", &arguments(), Duration::ZERO).block());
        assert!(!answer.unwrap().ok);
    }
}
