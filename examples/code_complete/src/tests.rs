use super::*;
use symphony::testing::{Host, Seen};
use symphony::{json, Value};

fn play(messages: &[&str]) -> (Seen, Vec<Value>) {
    let input = r#"{"max_tokens": 4, "undo_levels": 2}"#;
    let host = messages.iter().fold(Host::new().input(input), |host, m| host.message(*m));
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    let told = seen.sent.iter().map(|message| json::decode(message).unwrap()).collect();
    (seen, told)
}

fn numbers(told: &[Value], key: &str) -> Vec<u32> {
    told.iter().map(|message| message.get(key).and_then(Value::as_u32).unwrap()).collect()
}

fn text<'a>(told: &'a Value, key: &str) -> &'a str {
    told.get(key).and_then(Value::as_str).unwrap()
}

#[test]
fn only_what_changed_is_computed() {
    let (_, told) = play(&[
        r#"{"open": "a", "text": "0123456789"}"#,
        r#"{"edit": "a", "at": 10, "insert": "abc"}"#,
        r#"{"edit": "a", "at": 8, "delete": 2, "insert": "x"}"#,
        r#"{"undo": "a"}"#,
        r#"{"edit": "a", "at": 13, "insert": "d"}"#,
        r#"{"edit": "a", "at": 0, "delete": 14, "insert": ""}"#,
    ]);
    assert_eq!(numbers(&told, "tokens"), [10, 13, 12, 13, 14, 0]);
    // The last token of a text is left for the completion that comes.
    assert_eq!(numbers(&told, "computed"), [9, 3, 3, 0, 1, 0]);
    assert_eq!(numbers(&told, "versions"), [1, 2, 3, 2, 3, 3]);
}

#[test]
fn a_completion_changes_nothing_and_computes_what_is_not_there() {
    let complete = r#"{"complete": "a", "at": 6}"#;
    let (_, told) = play(&[
        r#"{"open": "a", "text": "0123456789"}"#,
        complete,
        complete,
        r#"{"edit": "a", "at": 6, "delete": 4, "insert": ""}"#,
        r#"{"complete": "a", "at": 99}"#,
        r#"{"open": "b", "text": "012345"}"#,
        r#"{"complete": "b", "at": 6}"#,
    ]);
    let said = text(&told[1], "completion");
    assert!(!said.is_empty());
    for i in [2, 4, 6] {
        assert_eq!(text(&told[i], "completion"), said);
    }
    assert_eq!([&numbers(&told[1..5], "computed")[..], &[1][..]].concat(), [1, 1, 0, 1, 1]);
    assert_eq!(numbers(&told[..3], "tokens"), [10, 10, 10]);
}

#[test]
fn mistakes_are_told_and_the_session_goes_on() {
    let (_, told) = play(&[
        r#"{"edit": "a", "at": 1}"#,
        r#"{"open": "a", "text": "ab"}"#,
        r#"{"undo": "a"}"#,
        r#"{"sing": "a"}"#,
        r#"{"complete": "a", "at": 0}"#,
        r#"{"close": "a"}"#,
        r#"{"complete": "a", "at": 1}"#,
        r#"{"edit": "a", "at": "x"}"#,
    ]);
    for (i, words) in [(0, "not open"), (2, "nothing to undo"), (3, "one of open"), (6, "not open")]
    {
        assert!(text(&told[i], "error").contains(words), "{:?}", told[i]);
    }
    assert!(text(&told[4], "error").contains("EINVAL"));
    assert_eq!(told[5].get("open").and_then(Value::as_u32), Some(0));
}
