//! Against plain greedy decoding by the host's model, which forgets nothing.

use super::*;
use symphony::json;
use symphony::testing::{Host, Seen};
use symphony::Value;

/// A model that goes round in circles, and now and then leaves them.
fn circles(history: &[u32]) -> Vec<f32> {
    let last = history[history.len() - 1];
    let tired = history.len() % 23 == 0 || history.iter().filter(|t| **t == last).count() % 7 == 6;
    let best = if tired { 97 + (history.len() as u32 * 7) % 26 } else { 97 + (last + 5) % 26 };
    (0..257).map(|token| if token == best { 9.0 } else { (token % 7) as f32 }).collect()
}

fn greedy(prompt: &str, count: usize) -> Vec<u8> {
    let mut tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
    for _ in 0..count {
        let logits = circles(&tokens);
        let best = (0..257).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        tokens.push(best as u32);
    }
    tokens[prompt.len()..].iter().map(|token| *token as u8).collect()
}

fn play(input: &str, model: fn(&[u32]) -> Vec<f32>) -> (Value, Seen) {
    let host = Host::new().input(input).model(model);
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    (json::decode(&seen.sent[0]).unwrap(), seen)
}

#[test]
fn the_tokens_are_those_of_greedy_decoding_in_fewer_passes() {
    for (branches, depth) in [(0, 8), (1, 4), (3, 8), (8, 24)] {
        for count in [1, 7, 100] {
            let input = format!(
                r#"{{"prompt": "abcab", "max_tokens": {}, "branches": {}, "depth": {}, "match": 2, "compare": true}}"#,
                count, branches, depth
            );
            let (said, _) = play(&input, circles);
            let text = said.get("text").and_then(Value::as_str).unwrap();
            assert_eq!(text.as_bytes(), greedy("abcab", count), "{}", input);
            assert_eq!(said.get("same").and_then(Value::as_bool), Some(true));
            let passes = said.get("passes").and_then(Value::as_u32).unwrap();
            if branches == 0 {
                assert_eq!(passes as usize, count);
            } else if count == 100 {
                assert!(passes < 60, "{} passes", passes);
            }
        }
    }
}

#[test]
fn it_ends_where_the_text_ends() {
    fn ending(history: &[u32]) -> Vec<f32> {
        let best = if history.len() == 9 { 256 } else { 97 + history.len() % 2 };
        (0..257).map(|token| if token == best { 9.0 } else { 0.0 }).collect()
    }
    let (said, _) = play(r#"{"prompt": "ababa", "compare": true}"#, ending);
    assert_eq!(said.get("text").and_then(Value::as_str), Some("baba"));
    assert_eq!(said.get("same").and_then(Value::as_bool), Some(true));
}
