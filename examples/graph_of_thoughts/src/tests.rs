//! The graph on a model that can be followed by hand.

use super::*;
use symphony::testing::{Host, Seen};
use symphony::{json, Value};

/// Says the digit of its way over and over; the judge likes even ways, and the later the better.
fn logits(history: &[u32]) -> Vec<f32> {
    let text: Vec<u8> = history.iter().map(|token| *token as u8).collect();
    let digit = text.iter().rev().find(|byte| byte.is_ascii_digit()).copied().unwrap_or(b'0');
    let mut logits = vec![0.0; 257];
    if text.ends_with(b"?") {
        logits[usize::from(b'y')] =
            f32::from(digit - b'0') * if digit % 2 == 0 { 1.0 } else { -1.0 };
    } else {
        logits[usize::from(digit)] = 20.0;
    }
    logits
}

fn think(input: &str) -> (Value, Seen) {
    let host = Host::new().input(input).model(logits);
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    (json::decode(&seen.sent[0]).unwrap(), seen)
}

const INPUT: &str = r#"{"prompt": "abc", "thought": "<{number}", "judge": "?", "good": "y", "bad": "n",
    "conclusion": ">", "branches": 5, "keep": 2, "tokens": 3, "conclusion_tokens": 2, "levels": "#;

#[test]
fn the_best_thoughts_are_kept_and_the_answer_follows_them() {
    let (result, _) = think(&format!("{}1}}", INPUT));
    let thoughts = result.get("thoughts").unwrap().as_array().unwrap();
    let said = |key| move |t: &Value| t.get(key).unwrap().as_f64().unwrap();
    let numbers: Vec<f64> = thoughts.iter().map(said("number")).collect();
    assert_eq!(numbers, [3.0, 1.0, 0.0, 2.0, 4.0]); // ways 4, 2, 1, 3, 5
    let kept: Vec<bool> =
        thoughts.iter().map(|t| t.get("kept").unwrap().as_bool().unwrap()).collect();
    assert_eq!(kept, [true, true, false, false, false]);
    assert_eq!(thoughts[0].get("text").unwrap().as_str(), Some("444"));
    assert!((said("score")(&thoughts[0]) - 4.0).abs() < 1e-4);
    // The file ends with the second best way: the answer has read it last.
    assert_eq!(result.get("text").unwrap().as_str(), Some("22"));
}

#[test]
fn every_step_computes_all_branches_and_a_merge_computes_nothing_again() {
    let (result, seen) = think(&format!("{}2}}", INPUT));
    let count = |key| result.get(key).unwrap().as_u64().unwrap();
    assert_eq!(count("generated"), 2 * 5 * 3 + 2);
    // A branch's words and the four tokens that judge it, at first with the prompt's last token before
    // them; what is merged had its last tokens computed.
    let (first, second) = (5 * (1 + 2 + 4), 5 * (2 + 4));
    assert_eq!(count("prefilled"), 2 + (first + 2) + (second + 2) + 1);
    assert!(seen.passes_per_wait.iter().filter(|rows| **rows == 5).count() >= 2 * 4);
}
