//! Continues a prompt and sends the text as it comes.

use std::error::Error;
use symphony::{log, process, Input, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let mut session = Session::new(input.text("prompt")?)?;
    let sampling = input.sampling("max_tokens", 128)?;
    let reply = session.stream(&sampling, |piece| process::send(piece)).await?;
    log!(Info, "{} tokens, ended by {:?}", session.usage().generated, reply.finish);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn complete(input: &str) -> Seen {
        let (outcome, seen) =
            Host::new().input(input).observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        seen
    }

    #[test]
    fn greedy_is_the_default_and_seeds_repeat() {
        let greedy = complete(r#"{"prompt": "ab", "max_tokens": 8}"#);
        assert_eq!(complete(r#"{"prompt": "ab", "max_tokens": 8, "temperature": 0}"#), greedy);
        let drawn = r#"{"prompt": "ab", "max_tokens": 8, "temperature": 2.0, "seed": 3}"#;
        assert_eq!(complete(drawn).sent, complete(drawn).sent);
        assert_ne!(complete(drawn).sent, greedy.sent);
    }

    #[test]
    fn a_string_is_a_prompt_and_each_step_is_one_pass() {
        let seen = complete("hello");
        assert_eq!(seen.passes_per_wait, vec![1; seen.passes_per_wait.len()]);
        assert!(!seen.sent.is_empty());
    }

    #[test]
    fn an_input_without_a_prompt_is_told_so() {
        let (outcome, _) =
            Host::new().input("{}").observe(|| symphony::block_on(run(Input::read().unwrap())));
        assert!(outcome.unwrap().unwrap_err().to_string().contains("needs a prompt"));
    }
}
