//! {{name}}: the model writes actions, the program calls the tool and adds what it said.

use std::error::Error;
use symphony::json::Object;
use symphony::{process, tool, Constraint, Input, Session, Value};

const PROMPT: &str = "Answer the question. An action is search[words] or finish[answer]; an \
    observation follows each search.\n";
const ACTION: &str = r"(search|finish)\[[A-Za-z0-9 ]{1,24}\]";

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let sampling = input.sampling("action_tokens", 32)?;
    let mut text = Session::new(&format!("{}Question: {}\n", PROMPT, input.text("question")?))?;
    for _ in 0..input.whole("steps", 4, 1..=64)? {
        text.append("Action: ")?;
        let action = Constraint::regex(ACTION)?; // again for each action: a file has one text of it
        let written = text.reply(&sampling.clone().constraint(&action)).await?.text;
        let (name, argument) = parse(&written);
        if name == "finish" {
            return Ok(process::send(Object::new().text("answer", argument).finish())?);
        }
        let arguments = Value::object([("query", argument.into())]);
        let found = tool::call("project.search", &arguments).await?;
        text.append(&format!("\nObservation: {}\n", found.content))?;
        let step = Object::new().text("query", argument).text("observation", &found.content);
        process::send(step.finish())?;
    }
    text.append("Answer:")?;
    let answer = text.reply(&input.sampling("answer_tokens", 32)?).await?.text;
    Ok(process::send(Object::new().text("answer", answer.trim()).finish())?)
}

/// The name and the argument of an action; one that was cut off has no closing bracket.
fn parse(written: &str) -> (&str, &str) {
    let (name, argument) = written.split_once('[').unwrap_or((written, ""));
    (name, argument.trim_end_matches(']').trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, EOS};
    use symphony::tool::Answer;

    /// A model that writes `script` behind the last action's beginning.
    fn writing(script: &'static str) -> impl Fn(&[u32]) -> Vec<f32> {
        move |history| {
            let text: String = history.iter().map(|token| char::from(*token as u8)).collect();
            let at = text.rfind("Action: ").map_or(0, |at| at + "Action: ".len());
            let next = script.as_bytes().get(text.len() - at).map_or(EOS, |byte| u32::from(*byte));
            let mut logits = vec![0.0; 257];
            logits[next as usize] = 9.0;
            logits
        }
    }

    fn play(script: &'static str) -> String {
        let host = Host::new().input(r#"{"question": "what?", "steps": 2, "answer_tokens": 2}"#);
        let host = host.model(writing(script)).tool("project.search", |arguments| Answer {
            ok: true,
            content: format!("about {}", arguments.get("query").and_then(Value::as_str).unwrap()),
        });
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        seen.text()
    }

    #[test]
    fn it_searches_until_its_steps_are_used_up() {
        assert_eq!(play("search[a lys]").matches("about a lys").count(), 2);
    }

    #[test]
    fn it_ends_with_the_models_answer() {
        assert!(play("finish[it is so]").contains("it is so"));
    }
}
