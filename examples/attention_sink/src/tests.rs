//! What the model is shown, on a host whose model says what it sees.

use super::*;
use std::cell::RefCell;
use std::rc::Rc;
use symphony::testing::{Host, Seen};
use symphony::{json, Value};

/// Plays, and returns what the model was shown for each token.
fn play(input: &str) -> (Seen, Vec<Vec<u32>>) {
    let shown = Rc::new(RefCell::new(Vec::new()));
    let all = shown.clone();
    let model = move |history: &[u32]| {
        all.borrow_mut().push(history.to_vec());
        // The best is the end of the text, which is ruled out.
        let next = 97 + (history.len() as u32 * 7 + history[history.len() - 1]) % 26;
        (0..257)
            .map(|t| {
                if t == 256 {
                    20.0
                } else if t == next {
                    9.0
                } else {
                    0.0
                }
            })
            .collect()
    };
    let host = Host::new().input(input).model(model);
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    let shown = shown.take();
    (seen, shown)
}

fn number(message: &[u8], key: &str) -> u32 {
    json::decode(message).unwrap().get(key).and_then(Value::as_u32).unwrap()
}

#[test]
fn the_model_sees_the_sinks_and_the_last_tokens_and_no_others() {
    let input = r#"{"prompt": "abcdefgh", "sinks": 4, "window": 12, "block": 5, "max_tokens": 300, "report": 50}"#;
    let (seen, shown) = play(input);
    let messages: Vec<Value> = seen.sent.iter().map(|m| json::decode(m).unwrap()).collect();
    let text: String =
        messages.iter().map(|m| m.get("text").and_then(Value::as_str).unwrap()).collect();
    let whole: Vec<u32> = "abcdefgh".bytes().chain(text.bytes()).map(u32::from).collect();
    assert_eq!(whole.len(), 308);
    let mut cut = 0;
    for history in &shown {
        assert!(history.len() <= 4 + 12 + 5, "{} are too many", history.len());
        if history.len() <= 4 {
            continue; // the sinks alone, at their new places
        }
        assert_eq!(history[..4], whole[..4]);
        let kept = &history[4..];
        assert!(whole.windows(kept.len()).any(|part| part == kept), "no window of the text");
        cut += usize::from(history.len() == 4 + 12 + 1);
    }
    assert!(cut >= 290 / 5, "{} times something was forgotten", cut);
    for message in &seen.sent {
        assert!(number(message, "entries") <= 21 && number(message, "pages") <= 2);
    }
}

#[test]
fn positions_that_run_out_begin_again() {
    let context = symphony::testing::Host::new().run(|| model::info().unwrap().max_context);
    let input = format!(
        r#"{{"prompt": "abc", "sinks": 2, "window": 30, "block": 10, "max_tokens": {}, "report": 1000}}"#,
        2 * context
    );
    let (seen, _) = play(&input);
    assert_eq!(number(seen.sent.last().unwrap(), "rebuilt"), 2);
    assert_eq!(number(seen.sent.last().unwrap(), "tokens"), 2 * context);
    assert!(seen.sent.iter().all(|message| number(message, "position") <= context));
}
