//! ReAct: the model thinks, the program reads an action out of its text, calls the tool, and adds what
//! came to the same KV file. Nothing is computed twice, however often it calls.

use std::error::Error;
use symphony::json::Object;
use symphony::prompt::fill;
use symphony::{process, tool, Input, Reply, Session, Value};

const PROMPT: &str = "Find out what is asked. Each thought ends with an action, Search[what] or \
    Finish[answer]; an observation follows.\n\nQuestion: {question}\n";
const ASK: &str = "Thought:";
const STEER: &str = "\nAction: Search[{query}]";
const TELL: &str = "\nObservation: {content}\n";
const CONCLUDE: &str = "Answer:";

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let question = [("question", input.text("question")?)];
    let (name, argument) =
        (input.text_or("tool", "example.search")?, input.text_or("argument", "query")?);
    let thought = input.sampling("thought_tokens", 48)?.stop("]");
    // Small models write no actions: where the input has queries, these are made instead.
    let queries = input.texts("queries")?;

    let mut text = Session::new(&fill(input.text_or("prompt", PROMPT)?, &question))?;
    for step in 0..input.whole("steps", 4, 0..=1024)? {
        text.append(ASK)?;
        let thought = text.reply(&thought).await?;
        let query = match (queries.get(step % queries.len().max(1)), action(&thought.text)) {
            (Some(query), _) => {
                text.append(&fill(STEER, &[("query", query)]))?;
                String::from(*query)
            }
            (None, Some(Action::Search(query))) => {
                text.append("]")?;
                query
            }
            (None, Some(Action::Finish(answer))) => return conclude(&text, &answer),
            (None, None) => break, // it does not know what to do: it has to answer
        };
        let arguments = Value::object([(argument, query.as_str().into())]);
        let answer = tool::call(name, &arguments).await?;
        text.append(&fill(TELL, &[("content", &answer.content)]))?;
        let step = Object::new().text("thought", &thought.text).text("query", &query);
        process::send(step.text("observation", &answer.content).flag("ok", answer.ok).finish())?;
    }
    text.append(CONCLUDE)?;
    let Reply { text: answer, .. } = text.reply(&input.sampling("answer_tokens", 32)?).await?;
    conclude(&text, &answer)
}

/// What the model wants.
#[derive(Debug, PartialEq)]
enum Action {
    Search(String),
    Finish(String),
}

/// The last action in a text; its closing bracket has stopped the model, and is not there.
fn action(thought: &str) -> Option<Action> {
    let (before, argument) = thought.rsplit_once('[')?;
    let argument = argument.trim().to_string();
    if before.ends_with("Search") {
        Some(Action::Search(argument))
    } else if before.ends_with("Finish") {
        Some(Action::Finish(argument))
    } else {
        None
    }
}

/// The end: the answer, and how many tokens were computed for it.
fn conclude(text: &Session, answer: &str) -> Result<(), Box<dyn Error>> {
    let usage = text.usage();
    let result = Object::new().text("answer", answer).whole("tokens", text.tokens().len() as u64);
    let result = result.whole("prefilled", usage.prefilled).whole("generated", usage.generated);
    process::send(result.finish())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen, EOS};
    use symphony::{json, tool::Answer};

    fn play(input: &str, model: impl Fn(&[u32]) -> Vec<f32> + 'static) -> (Vec<Value>, Seen) {
        let search = |arguments: &Value| match arguments.get("query").and_then(Value::as_str) {
            Some(query) => Answer { ok: true, content: format!("all about {}", query) },
            None => Answer { ok: false, content: "no query".into() },
        };
        let host = Host::new().input(input).model(model).tool("example.search", search);
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        let sent = seen.sent.iter().map(|message| json::decode(message).unwrap()).collect();
        (sent, seen)
    }

    /// A model that writes one text, wherever it is asked to think, and another as the answer.
    fn writing(
        thoughts: &'static [&'static str],
        answer: &'static str,
    ) -> impl Fn(&[u32]) -> Vec<f32> {
        move |history| {
            let text: String = history.iter().map(|t| char::from(*t as u8)).collect();
            let (at, asked) = text.rfind("Thought:").map_or((0, "Thought:"), |at| (at, "Thought:"));
            let (at, script) = match text.rfind("Answer:").filter(|answer| *answer > at) {
                Some(at) => (at + "Answer:".len(), answer),
                None => {
                    let step = text.matches(asked).count() - 1;
                    (at + asked.len(), thoughts[step.min(thoughts.len() - 1)])
                }
            };
            let next = script.as_bytes().get(text.len() - at).map_or(EOS, |byte| u32::from(*byte));
            let mut logits = vec![0.0; 257];
            logits[next as usize] = 9.0;
            logits
        }
    }

    fn texts<'a>(sent: &'a [Value], key: &str) -> Vec<&'a str> {
        sent.iter().filter_map(|value| value.get(key).and_then(Value::as_str)).collect()
    }

    #[test]
    fn it_follows_the_model_s_actions_until_it_finishes() {
        let model = writing(&[" first Search[a thing]", " so Finish[it is]"], "");
        let (sent, _) = play(r#"{"question": "what is it?"}"#, model);
        assert_eq!(texts(&sent, "query"), ["a thing"]);
        assert_eq!(texts(&sent, "observation"), ["all about a thing"]);
        assert_eq!(texts(&sent, "answer"), ["it is"]);
    }

    #[test]
    fn a_model_without_an_action_answers_at_once() {
        let (sent, _) = play(r#"{"question": "what?"}"#, writing(&[" I know it"], " yes"));
        assert_eq!((sent.len(), texts(&sent, "answer")), (1, vec![" yes"]));
    }

    #[test]
    fn steered_steps_compute_everything_once() {
        let input = r#"{"question": "what?", "steps": 3, "queries": ["a", "b"], "thought_tokens": 5,
            "answer_tokens": 4, "ignore_eos": true}"#;
        let (sent, seen) = play(input, |_| vec![1.0; 257]);
        assert_eq!(texts(&sent, "query"), ["a", "b", "a"]);
        let end = &sent[3];
        let count = |key| end.get(key).and_then(Value::as_u64).unwrap();
        assert_eq!(count("generated"), 3 * 5 + 4);
        // A thought's last token is chosen in one pass and computed in the next: it counts in both.
        assert_eq!(count("tokens"), count("prefilled") + count("generated") - 3);
        assert_eq!(seen.passes_per_wait.iter().sum::<usize>(), 3 * 5 + 4);
    }

    #[test]
    fn an_action_is_the_last_bracket() {
        assert_eq!(action(" [1] Search[ x y "), Some(Action::Search("x y".into())));
        assert_eq!(action("Finish["), Some(Action::Finish("".into())));
        assert_eq!((action("Search"), action("look[x"), action("")), (None, None, None));
    }
}
