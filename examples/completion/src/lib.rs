//! Continues a prompt and sends the text as it comes.

use std::error::Error;
use symphony::decode::{Generation, Sampler};
use symphony::pred::Sampling;
use symphony::{json, log, model, process, KvFile, Value};

symphony::main!(async run);

async fn run() -> Result<(), Box<dyn Error>> {
    let input = read_input()?;
    let prompt = input.get("prompt").and_then(Value::as_str).unwrap_or_default();
    let prompt = model::tokenize(prompt)?;
    if prompt.is_empty() {
        return Err("the input needs a prompt: {\"prompt\": \"def \", \"max_tokens\": 32}".into());
    }

    let kv = KvFile::create()?;
    let max_tokens = input.get("max_tokens").and_then(Value::as_u32).unwrap_or(128);
    let mut generation =
        Generation::new(&kv, &prompt)?.max_tokens(max_tokens as usize).sampler(sampler(&input));
    for stop in input.get("stop").and_then(Value::as_array).unwrap_or_default() {
        generation = generation.stop(stop.as_str().unwrap_or_default());
    }
    while let Some(piece) = generation.next().await? {
        process::send(piece)?;
    }
    log!(Info, "{} tokens, ended by {:?}", generation.tokens().len(), generation.finish());
    Ok(())
}

/// The input's map; a plain string is a prompt.
fn read_input() -> Result<Value, Box<dyn Error>> {
    let bytes = process::input();
    if bytes.first() == Some(&b'{') {
        return Ok(json::decode(&bytes)?);
    }
    let prompt = Value::Str(String::from_utf8(bytes)?);
    Ok(Value::Map(vec![(Value::Str("prompt".into()), prompt)]))
}

/// Greedy unless there is a temperature above 0.
fn sampler(input: &Value) -> Sampler {
    let number = |key, default| input.get(key).and_then(Value::as_f64).unwrap_or(default) as f32;
    let temperature = number("temperature", 0.0);
    if temperature <= 0.0 {
        return Sampler::Greedy;
    }
    Sampler::Random(Sampling {
        temperature,
        top_k: input.get("top_k").and_then(Value::as_u32).unwrap_or(0),
        top_p: number("top_p", 1.0),
        min_p: number("min_p", 0.0),
        seed: input.get("seed").and_then(Value::as_u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn complete(input: &str) -> Seen {
        let (outcome, seen) = Host::new().input(input).observe(|| symphony::block_on(run()));
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
        let (outcome, _) = Host::new().input("{}").observe(|| symphony::block_on(run()));
        assert!(outcome.unwrap().unwrap_err().to_string().contains("needs a prompt"));
    }
}
