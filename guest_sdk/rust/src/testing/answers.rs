//! What a program has sent as a model, read back for its tests.

use crate::msgpack;
use crate::serve::{Finish, Refusal, OPENING};
use crate::value::Value;
use std::string::String;
use std::vec::Vec;

/// A choice of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Its text.
    pub text: String,
    /// Its reasoning.
    pub reasoning: String,
    /// Its calls of tools: their names and arguments.
    pub calls: Vec<(String, String)>,
    /// Why it has ended, where the program said so.
    pub finish: Option<Finish>,
}

/// Panics where the bytes are no records.
pub(super) fn read(mut sent: &[u8]) -> (Vec<Said>, Option<Refusal>) {
    let (mut choices, mut refusal) = (Vec::new(), None);
    while !sent.is_empty() {
        if let Some(rest) = sent.strip_prefix(&OPENING) {
            sent = rest;
            continue;
        }
        let (length, rest) = sent.split_at(4);
        let (record, rest) = rest.split_at(u32::from_le_bytes(length.try_into().unwrap()) as usize);
        sent = rest;
        match record[0] {
            b'e' => refusal = Some(read_refusal(&record[1..])),
            b'u' => {}
            _ => add(record, &mut choices),
        }
    }
    (choices, refusal)
}

fn add(record: &[u8], choices: &mut Vec<Said>) {
    let choice = usize::from(u16::from_le_bytes([record[1], record[2]]));
    choices.resize(choices.len().max(choice + 1), Said::default());
    let said = &mut choices[choice];
    let text = |from: usize| std::str::from_utf8(&record[from..]).expect("text is UTF-8");
    match record[0] {
        b'r' => said.reasoning.push_str(text(3)),
        b'c' => said.calls.push((text(5).into(), String::new())),
        b'a' => said.calls.last_mut().expect("a call has begun").1.push_str(text(5)),
        b'p' => said.text.push_str(text(4)),
        b'l' => {
            let length = u32::from_le_bytes(record[4..8].try_into().unwrap()) as usize;
            said.text.push_str(std::str::from_utf8(&record[8..8 + length]).expect("UTF-8"));
            msgpack::decode(&record[8 + length..]).expect("log-probabilities are MessagePack");
        }
        kind => panic!("no record is of the kind {}", kind),
    }
    if matches!(record[0], b'p' | b'l') {
        let ends = [Finish::Stop, Finish::Length, Finish::ToolCalls, Finish::ContentFilter];
        said.finish = ends.get(usize::from(record[3])).copied();
    }
}

fn read_refusal(packed: &[u8]) -> Refusal {
    let map = msgpack::decode(packed).expect("a refusal is MessagePack");
    let text = |name| map.get(name).and_then(Value::as_str).unwrap_or_default();
    let status = map.get("status").and_then(Value::as_u32).expect("a refusal has a status");
    Refusal::new(text("message")).status(status as u16).code(text("code")).param(text("param"))
}
