//! Applications that think, act and talk.

use crate::given::Given;
use crate::{context, go_on, Answer};
use symphony::{model, tool, try_join_all, Value};

/// ReACT: a thought, a tool's answer, and so on, in one KV file that is kept across the calls.
pub async fn react(given: &Given) -> Answer {
    let kv = context(given)?;
    let (thought, answer) = (given.number("thought")?, given.number("answer")?);
    let mut unread = given.tokens("question")?;
    for observation in given.texts("observations")? {
        let thought = go_on(&kv, &unread, thought).await?;
        let arguments = Value::object([
            ("text", observation.as_str().into()),
            ("delay_ms", Value::UInt(u64::from(given.number("tool_ms")?))),
        ]);
        let seen = tool::call("evaluation.look_up", &arguments).await?;
        unread = vec![thought[thought.len() - 1]];
        unread.extend(model::tokenize(&seen.content)?);
    }
    Ok(go_on(&kv, &unread, answer).await?)
}

/// SWARM: agents that speak at once, each behind the same board, which all that was said goes to.
pub async fn swarm(given: &Given) -> Answer {
    let board = context(given)?;
    let (roles, new) = (given.lists("roles")?, given.number("message")?);
    board.prefill(&given.tokens("question")?).await?;
    let mut messages = Vec::new();
    for round in 0..given.number("rounds")? {
        let start = board.len()?;
        let speaking = roles.iter().map(|role| {
            let board = &board;
            async move {
                let kv = board.fork()?;
                let message = go_on(&kv, role, new).await?;
                symphony::Result::Ok((kv, message))
            }
        });
        let said = try_join_all(speaking).await?;
        messages = said.iter().flat_map(|(_, message)| message.iter().copied()).collect();
        if round + 1 == given.number("rounds")? {
            break;
        }
        if given.flag("exact") {
            // What all are to read is computed once.
            board.prefill(&messages).await?;
        } else {
            // What each said becomes part of the board with its K and V: only last tokens lack them.
            let last = said.iter().map(|(kv, message)| kv.prefill(&message[message.len() - 1..]));
            try_join_all(last.collect::<Vec<_>>()).await?;
            for ((kv, _), role) in said.iter().zip(&roles) {
                let from = start + role.len() as u32;
                board.append(kv, from..from + new)?;
            }
        }
    }
    Ok(messages)
}
