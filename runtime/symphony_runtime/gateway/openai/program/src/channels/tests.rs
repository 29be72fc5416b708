use super::*;
use symphony::json;

/// An answer's parts, joined over the whole of it.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

fn collect(parts: Vec<Part>) -> Answer {
    let mut answer = Answer::default();
    for part in parts {
        match part {
            Part::Content(text) => answer.content += &text,
            Part::Reasoning(text) => answer.reasoning += &text,
            Part::Call(number, name) => {
                assert_eq!(usize::from(number), answer.calls.len());
                answer.calls.push((name, String::new()));
            }
            Part::Arguments(number, text) => answer.calls[usize::from(number)].1 += &text,
        }
    }
    answer
}

fn read(format: &Format, pieces: &[&str], thinking: bool) -> Answer {
    let mut channels = Channels::new(thinking);
    let mut parts = Vec::new();
    pieces.iter().for_each(|piece| channels.feed(piece, format, &mut parts));
    channels.finish(format, &mut parts);
    collect(parts)
}

/// The answer, which is the same however its text is cut: in two, in three, and into characters.
fn read_in_all_splits(format: &Format, text: &str, thinking: bool) -> Answer {
    let whole = read(format, &[text], thinking);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for (i, at) in cuts.iter().enumerate() {
        let (head, tail) = text.split_at(*at);
        assert_eq!(read(format, &[head, tail], thinking), whole, "{:?}", (head, tail));
        for later in cuts[i..].iter().step_by(7) {
            let (middle, end) = tail.split_at(later - at);
            assert_eq!(read(format, &[head, middle, end], thinking), whole);
        }
    }
    let mut characters = [0; 4];
    let mut channels = Channels::new(thinking);
    let mut parts = Vec::new();
    for c in text.chars() {
        channels.feed(c.encode_utf8(&mut characters), format, &mut parts);
    }
    channels.finish(format, &mut parts);
    assert_eq!(collect(parts), whole);
    whole
}

fn format(json: &str) -> Format {
    Format::of(&json::decode(json.as_bytes()).unwrap()).unwrap()
}

fn hermes() -> Format {
    format(
        r#"{"calls": {"begin": "<tool_call>", "end": "</tool_call>", "names": ["f"]},
            "think": ["<think>", "</think>"]}"#,
    )
}

fn bare() -> Format {
    format(r#"{"calls": {"begin": "<|python_tag|>", "bare": true, "names": ["f", "g"]}}"#)
}

fn listed() -> Format {
    format(r#"{"calls": {"begin": "[TOOL_CALLS]", "listed": true, "names": ["f"]}}"#)
}

fn named() -> Format {
    format(r#"{"calls": {"begin": "[TOOL_CALLS]", "args": "[ARGS]", "names": ["f"]}}"#)
}

fn calls(answer: &Answer) -> Vec<(&str, &str)> {
    answer.calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect()
}

#[test]
fn marked_calls_are_split_from_content_and_reasoning() {
    let text = "<think>\nhm <tool_call> \u{e9}\n</think>\n\nLet me see.\n<tool_call>\n\
        {\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>\n<tool_call>\n\
        {\"arguments\": {}, \"name\": \"g\"}\n</tool_call>";
    let answer = read_in_all_splits(&hermes(), text, false);
    assert_eq!(answer.reasoning, "hm <tool_call> \u{e9}");
    assert_eq!(answer.content, "Let me see.");
    assert_eq!(calls(&answer), [("f", r#"{"a": "</tool_call>"}"#), ("g", "{}")]);
    let opened = text.trim_start_matches("<think>");
    assert_eq!(read_in_all_splits(&hermes(), opened, true), answer);
}

#[test]
fn calls_of_a_name_and_arguments_are_split_from_content() {
    let text = "Well.[TOOL_CALLS]f[ARGS]{\"a\": \"[ARGS]}\", \"b\": {}}\
        [TOOL_CALLS] g[CALL_ID]x1[ARGS] {}[TOOL_CALLS]h[ARGS]";
    let answer = read_in_all_splits(&named(), text, false);
    assert_eq!(answer.content, "Well.");
    let arguments = r#"{"a": "[ARGS]}", "b": {}}"#;
    assert_eq!(calls(&answer), [("f", arguments), ("g", "{}"), ("h", "")]);
}

#[test]
fn marker_without_a_name_and_arguments_is_content() {
    for text in
        ["[TOOL_CALLS] is a marker", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS]f{}", "[TOOL_CALLS]f"]
    {
        let answer = read_in_all_splits(&named(), text, false);
        assert_eq!((answer.content.as_str(), answer.calls.len()), (text, 0));
    }
}

#[test]
fn marker_that_opens_no_call_is_content() {
    for text in [
        "a <tool_call> b",
        "<tool_call>",
        "<tool_call>\n{\"name\": 5}",
        "<tool_cal",
        "<thin",
        " x\n",
        "\n",
        "a\n<tool_call>{\"x\": 1} \n",
    ] {
        let answer = read_in_all_splits(&hermes(), text, false);
        // Spaces before a marker are the format's.
        assert_eq!(answer.content.replace('\n', ""), text.replace('\n', "").replace("a <", "a<"));
        assert!(answer.calls.is_empty());
    }
    assert_eq!(read_in_all_splits(&hermes(), " x\n", false).content, " x\n");
}

#[test]
fn bare_calls_are_those_of_known_tools() {
    let text = r#"{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}"#;
    let answer = read_in_all_splits(&bare(), text, false);
    assert_eq!(calls(&answer), [("f", r#"{"a": 1}"#), ("g", "{}")]);
    assert_eq!(answer.content, "");
    let tagged = format!("<|python_tag|>{}", text);
    assert_eq!(read_in_all_splits(&bare(), &tagged, false), answer);
    for text in [r#"{"name": "Ada", "age": 5}"#, r#"{"city": "Rome"}"#, "see {\"name\": \"f\"}"] {
        let answer = read_in_all_splits(&bare(), text, false);
        assert_eq!((answer.content.as_str(), answer.calls.len()), (text, 0));
    }
}

#[test]
fn listed_calls_are_split() {
    for open in ["[TOOL_CALLS] [", "[TOOL_CALLS]["] {
        let call = r#"{"name": "f", "arguments": {"a": "]"}, "id": "abcdefghi"}"#;
        let text = format!("Well. {}{}, {}]", open, call, call);
        let answer = read_in_all_splits(&listed(), &text, false);
        assert_eq!(answer.content, "Well.");
        assert_eq!(calls(&answer), [("f", r#"{"a": "]"}"#); 2]);
    }
    assert_eq!(read_in_all_splits(&listed(), "[TOOL_CALLS] x", false).content, "[TOOL_CALLS] x");
}

#[test]
fn answer_with_a_single_call_is_over_behind_it() {
    let mut single = hermes();
    single.single = true;
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let answer = read_in_all_splits(&single, &format!("{}{} more", call, call), false);
    assert_eq!((calls(&answer), answer.content.as_str()), (vec![("f", "{}")], ""));
}

#[test]
fn call_that_is_cut_off_keeps_what_came() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b";
    assert_eq!(calls(&read_in_all_splits(&hermes(), text, false)), [("f", "{\"a\": \"b")]);
    let closed = "<tool_call>\n{\"name\": \"f\"}\n</tool";
    assert_eq!(read_in_all_splits(&hermes(), closed, false).content, "");
    assert_eq!(read_in_all_splits(&hermes(), "<think>so\n", false).reasoning, "so");
}

/// The cases of tests/runtime/gateway/openai/test_call_formats.py, which chat templates rendered.
#[test]
fn rendered_answers_are_split_as_they_were_given() {
    let path = match std::env::var("SYMPHONY_RENDERED") {
        Ok(path) => path,
        Err(_) => return,
    };
    let cases = json::decode(&std::fs::read(path).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        let text = |key| case.get(key).unwrap().as_str().unwrap();
        let format = Format::of(case.get("format").unwrap()).unwrap();
        let answer = read_in_all_splits(&format, text("text"), false);
        assert_eq!(answer.content, text("content"));
        assert_eq!(answer.reasoning, text("reasoning"));
        let expected = case.get("calls").unwrap().as_array().unwrap();
        assert_eq!(answer.calls.len(), expected.len(), "{}", text("text"));
        for ((name, arguments), call) in answer.calls.iter().zip(expected) {
            assert_eq!(call.get("name").unwrap().as_str(), Some(name.as_str()));
            assert_eq!(
                &json::decode(arguments.as_bytes()).unwrap(),
                call.get("arguments").unwrap()
            );
        }
    }
}
