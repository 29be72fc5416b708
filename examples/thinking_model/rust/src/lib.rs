//! A model that thinks first: a program that OpenAI clients use as `model`. It streams its reasoning, then
//! answers, or calls one of the client's tools with arguments that always fit the tool's schema.

use symphony::serve::{Answer, Refusal, Request, ToolChoice};
use symphony::{Constraint, Result, Sampling, Session};

const THINK: &str = "First, in a line, what matters here:";

#[symphony::main]
async fn run(request: Request) -> core::result::Result<(), Refusal> {
    if request.messages.is_empty() && request.prompts.len() != 1 {
        return Err(Refusal::new("there has to be a conversation, or one prompt").param("messages"));
    }
    let thinking = request.input.whole("thinking_tokens", 32, 1..=1024)?;
    let toolbox = Toolbox::of(&request)?;
    let mut session = request.session()?;
    let mut answers = Answer::several(request.n);
    // The conversation is computed once; each step of the server computes all choices.
    let branches = session.fan_out(request.n, |i, branch| {
        let (answer, toolbox) = (answers.remove(0), &toolbox);
        let sampling = request.sampling.branch(i);
        async move { think_and_answer(branch, answer, &sampling, thinking, toolbox).await }
    });
    branches.await?;
    Ok(())
}

async fn think_and_answer(
    mut text: Session,
    mut answer: Answer,
    sampling: &Sampling,
    thinking: usize,
    toolbox: &Toolbox,
) -> Result<()> {
    text.append(THINK)?;
    let line = sampling.clone().max_tokens(thinking).stop("\n");
    text.stream(&line, |piece| answer.reasoning(piece)).await?;
    text.append("\n")?;
    let held = match &toolbox.names {
        Some(names) => {
            text.append("Call ")?;
            let named = text.reply(&Sampling::new().constraint(names)).await?.text;
            text.append(" with ")?;
            toolbox.tools.iter().find(|(name, _)| *name == named)
        }
        None => None,
    };
    let reply = match held {
        Some((name, arguments)) => {
            let mut call = answer.call(name)?;
            let held = sampling.clone().constraint(arguments);
            text.stream(&held, |piece| call.arguments(piece)).await?
        }
        None => text.stream(sampling, |piece| answer.text(piece)).await?,
    };
    if reply.finish == symphony::decode::Finish::Length || held.is_none() {
        answer.finish(&reply.finish)?;
    }
    Ok(())
}

/// The tools that are to be called, with what holds the model to them.
struct Toolbox {
    /// One of their names; `None` where text is wanted.
    names: Option<Constraint>,
    tools: Vec<(String, Constraint)>,
}

impl Toolbox {
    fn of(request: &Request) -> core::result::Result<Toolbox, Refusal> {
        let answered = request.messages.last().map_or(false, |last| last.role == "tool");
        let wanted = |name: &str| match &request.tool_choice {
            ToolChoice::None => false,
            ToolChoice::Auto => !answered, // what its tools have said is to be told
            ToolChoice::Required => true,
            ToolChoice::Tool(only) => only == name,
        };
        let mut tools = Vec::new();
        for tool in request.tools.iter().filter(|tool| wanted(&tool.name)) {
            let schema = symphony::json::encode(&tool.parameters);
            let arguments = Constraint::json_schema(&schema).map_err(|refused| {
                Refusal::new(format!("the schema of {}: {}", tool.name, refused)).param("tools")
            })?;
            tools.push((tool.name.clone(), arguments));
        }
        let names: Vec<&str> = tools.iter().map(|(name, _)| name.as_str()).collect();
        let names = match names.len() {
            0 => None,
            _ => Some(Constraint::regex(&names.join("|"))?),
        };
        Ok(Toolbox { names, tools })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::serve::Finish;
    use symphony::testing::{Host, Seen};

    const TOOLS: &str = r#""tools": [{"type": "function", "function": {"name": "look", "parameters":
        {"type": "object"}}}, {"type": "function", "function": {"name": "ask"}}]"#;

    fn play(body: &str) -> Seen {
        let host = Host::new().input(body).grammar(r#"{"type":"object"}"#, r#"\{"at":[0-9]\}"#);
        let (outcome, seen) = host.observe(|| match Request::read() {
            Ok(request) => symphony::block_on(run(request)),
            Err(refusal) => Err(refusal),
        });
        if let Err(refusal) = outcome.unwrap() {
            refusal.send().unwrap_or_default();
            return Seen { sent: Vec::new(), ..seen };
        }
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        seen
    }

    fn body(fields: &str) -> String {
        let messages = r#"{"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "#;
        [messages, r#""max_tokens": 4, "thinking_tokens": 3"#, fields, "}"].concat()
    }

    #[test]
    fn it_thinks_and_then_answers_each_choice() {
        let said = play(&body(r#", "n": 2"#)).answers();
        assert_eq!(said.len(), 2);
        for choice in said {
            assert!(!choice.reasoning.is_empty() && !choice.text.is_empty(), "{:?}", choice);
            assert_eq!((choice.finish, choice.calls.len()), (Some(Finish::Length), 0));
        }
    }

    #[test]
    fn a_tool_is_called_with_arguments_of_its_schema() {
        let fields = [", ", TOOLS, r#", "tool_choice": {"type": "function", "name": "look"}"#];
        let longer = body(&fields.concat()).replace("\"max_tokens\": 4", "\"max_tokens\": 40");
        let said = play(&longer).answers();
        let (name, arguments) = &said[0].calls[0];
        assert_eq!((name.as_str(), arguments.starts_with("{\"at\":")), ("look", true));
        assert_eq!((said[0].finish, said[0].text.as_str()), (None, ""));
    }

    #[test]
    fn what_a_tool_has_answered_is_told_in_words() {
        let answered = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": "x"}], "#;
        let said = play(&[answered, TOOLS, r#", "max_tokens": 3}"#].concat()).answers();
        assert!(said[0].calls.is_empty() && !said[0].text.is_empty());
    }

    #[test]
    fn nothing_to_answer_is_refused() {
        let (outcome, _) = Host::new()
            .input(r#"{"messages": []}"#)
            .observe(|| symphony::block_on(run(Request::read().unwrap())));
        assert_eq!(outcome.unwrap().unwrap_err().param, "messages");
    }
}
