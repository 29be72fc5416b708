//! {{name}}: reads a person out of a text; a JSON schema holds what the model writes.

use std::error::Error;
use symphony::{json, process, Constraint, Input, Session, Value};

const SCHEMA: &str = r#"{"type": "object", "required": ["name", "age"], "additionalProperties": false,
    "properties": {"name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}}}"#;

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let person = Constraint::json_schema(SCHEMA)?; // an error says what is wrong, and where
    let sampling = input.sampling("max_tokens", 96)?.constraint(&person);
    let mut text = Session::new(&format!("{}\nThe person as JSON: ", input.text("text")?))?;
    let written = text.reply(&sampling).await?.text;
    Ok(process::send(check(&written)?)?)
}

/// The text, if it is a whole person: `max_tokens` may have cut it off.
fn check(written: &str) -> Result<&str, Box<dyn Error>> {
    let value = json::decode(written.as_bytes()).map_err(|_| "max_tokens has cut the answer off")?;
    value.get("age").and_then(Value::as_u32).ok_or("the answer has no age")?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::Host;

    /// The host has no JSON schemas: this expression stands for it.
    fn play(expression: &str, max_tokens: u32) -> Result<String, String> {
        let input = format!(r#"{{"text": "Ada was 36.", "max_tokens": {}}}"#, max_tokens);
        let host = Host::new().input(input).grammar(SCHEMA, expression);
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().map(|()| seen.text()).map_err(|error| error.to_string())
    }

    #[test]
    fn it_sends_a_whole_person() {
        let person = r#"{"name": "Ada", "age": 36}"#;
        assert_eq!(play(r#"\{"name": "Ada", "age": 36\}"#, 64).unwrap(), person);
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let told = play(r#"\{"name": "Ada", "age": 36\}"#, 8).unwrap_err();
        assert_eq!(told, "max_tokens has cut the answer off");
    }
}
