//! The search against a plain one, which computes every text from its first token.

use super::*;
use std::rc::Rc;
use symphony::testing::{Host, Seen, EOS};
use symphony::{json, Value};

/// A model of few words, whose judgement depends on the whole text.
fn logits(history: &[u32]) -> Vec<f32> {
    let seed = history.iter().fold(17u32, |h, t| h.wrapping_mul(31).wrapping_add(*t));
    let word = |t: u32| (seed ^ t.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b) >> 16;
    (0..257)
        .map(|t| match t {
            97..=122 => (word(t) % 1000) as f32 / 250.0,
            EOS => -40.0,
            _ => -30.0,
        })
        .collect()
}

fn search(levels: usize, branches: usize, breadth: usize, temperature: f32) -> (Value, Seen) {
    let input = format!(
        r#"{{"prompt": "ab", "step": "<", "judge": "?", "good": "y", "bad": "n", "conclusion": ">",
            "tokens": 2, "conclusion_tokens": 3, "levels": {}, "branches": {}, "breadth": {},
            "temperature": {}, "seed": 9}}"#,
        levels, branches, breadth, temperature
    );
    let host = Host::new().input(input).model(logits);
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    (json::decode(&seen.sent[0]).unwrap(), seen)
}

fn score(text: &str) -> f64 {
    let tokens: Vec<u32> = text.bytes().chain(*b"?").map(u32::from).collect();
    let logits = logits(&tokens);
    f64::from(logits[usize::from(b'y')] - logits[usize::from(b'n')])
}

#[test]
fn the_best_way_is_the_one_that_the_model_judges_best() {
    let (result, _) = search(2, 5, 3, 1.5);
    let steps = result.get("steps").unwrap().as_array().unwrap();
    let steps: Vec<&str> = steps.iter().filter_map(Value::as_str).collect();
    let text = format!("ab<{}<{}", steps[0], steps[1]);
    let found = result.get("score").unwrap().as_f64().unwrap();
    assert!((score(&text) - found).abs() < 1e-4, "{} {}", text, found);

    let levels = result.get("levels").unwrap().as_array().unwrap();
    let sizes: Vec<usize> = levels.iter().map(|level| level.as_array().unwrap().len()).collect();
    assert_eq!(sizes, [5, 3 * 5]); // only `breadth` of the first level have gone on
    let score_of = |value: &Value| value.get("score").unwrap().as_f64().unwrap();
    let last: Vec<f64> = levels[1].as_array().unwrap().iter().map(score_of).collect();
    assert!(last.windows(2).all(|pair| pair[0] >= pair[1]) && last[0] == found);
}

#[test]
fn a_tree_without_choice_is_the_model_s_own_text() {
    let (result, _) = search(3, 1, 1, 0.0);
    let steps = result.get("steps").unwrap().as_array().unwrap();
    let mut text = String::from("ab");
    let mut goes_on = |words: &str, count| {
        text.push_str(words);
        let begin = text.len();
        for _ in 0..count {
            let logits = logits(&text.bytes().map(u32::from).collect::<Vec<_>>());
            let best = (0..257).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            text.push(best as u8 as char);
        }
        Rc::<str>::from(&text[begin..])
    };
    for step in steps {
        assert_eq!(step.as_str(), Some(&*goes_on("<", 2)));
    }
    assert_eq!(result.get("text").unwrap().as_str(), Some(&*goes_on(">", 3)));
}

#[test]
fn a_level_is_computed_side_by_side() {
    let (_, seen) = search(2, 4, 2, 0.0);
    let rows = |count| seen.passes_per_wait.iter().filter(|rows| **rows == count).count();
    assert_eq!((rows(4), rows(8)), (3, 3)); // two tokens and a judgement a level
}
