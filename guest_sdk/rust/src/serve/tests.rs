use super::*;
use crate::testing::{Host, Said, Seen};
use crate::{json, Value};
use alloc::boxed::Box;
use alloc::vec;

fn request(body: &str) -> Request {
    Host::new().run(|| Request::parse(body.as_bytes())).unwrap()
}

fn refused(body: &str) -> (String, String) {
    let refusal = Host::new().run(|| Request::parse(body.as_bytes())).unwrap_err();
    assert_eq!((refusal.status, refusal.code.as_str()), (400, "invalid_request"));
    (refusal.param, refusal.message)
}

fn play(program: impl FnOnce() -> Result<()>) -> Seen {
    let (outcome, seen) = Host::new().observe(program);
    outcome.unwrap().unwrap();
    seen
}

#[test]
fn an_answer_is_records_behind_an_opening() {
    let seen = play(|| {
        let mut answer = Answer::new();
        answer.text("caf\u{e9}")?;
        answer.finish(Finish::Length)?;
        usage(7, 2, 1)
    });
    let records: &[&[u8]] = &[
        b"\xff\xff\xff\xffLIP\x01\x09\0\0\0p\0\0\xffcaf\xc3\xa9",
        b"\x04\0\0\0p\0\0\x01",
        b"\xff\xff\xff\xffLIP\x01\x0d\0\0\0u\x07\0\0\0\x02\0\0\0\x01\0\0\0",
    ];
    assert_eq!(seen.sent, records);
}

#[test]
fn each_choice_has_its_own_text_reasoning_and_calls() {
    let seen = play(|| {
        let mut answers = Answer::several(2);
        answers[1].reasoning("why")?;
        answers[0].text("a")?;
        answers[1].call("look")?.arguments("{}")?;
        let mut call = answers[1].call("edit")?;
        call.arguments(r#"{"a""#)?;
        call.arguments(": 1}")?;
        answers[0].text("b")?;
        answers[0].finish(Finish::ContentFilter)
    });
    let calls = vec![("look".into(), "{}".into()), ("edit".into(), r#"{"a": 1}"#.into())];
    let first = Said { text: "ab".into(), finish: Some(Finish::ContentFilter), ..Said::default() };
    let second = Said { reasoning: "why".into(), calls, ..Said::default() };
    assert_eq!(seen.answers(), [first, second]);
}

#[test]
fn a_long_text_goes_in_parts_between_characters() {
    let text = "\u{20ac}".repeat(30_000);
    let seen = play(|| Answer::new().text(&text));
    assert_eq!(seen.answers()[0].text, text);
    assert!(seen.sent.len() == 3 && seen.sent.iter().all(|sent| sent.len() < 33 << 10));
    assert_eq!(play(|| Answer::new().text("")).sent.len(), 0);
}

#[test]
fn log_probabilities_stand_with_the_text() {
    let seen = play(|| {
        let best = vec![Choice { token: 97, logprob: -0.25 }, Choice { token: 98, logprob: -2.0 }];
        let scored = Scored { choice: Choice { token: 98, logprob: -2.0 }, best };
        Answer::new().text_with("b", &[TokenLogprob::of(&scored)?])
    });
    assert_eq!(seen.answers()[0].text, "b");
    let packed = crate::msgpack::decode(&seen.sent[0][8 + 4 + 1 + 3 + 4 + 1..]).unwrap();
    assert_eq!(json::encode(&packed), r#"[["b",-2.0,[["a",-0.25],["b",-2.0]]]]"#);
}

#[test]
fn a_refusal_and_every_error_reach_the_client() {
    async fn refuses(request: Request) -> core::result::Result<(), Refusal> {
        request.input.whole("levels", 1, 1..=3)?; // the client's mistake
        match request.messages.first() {
            None => Err(Refusal::new("no messages").param("messages").code("empty")),
            Some(_) => Err(Box::<dyn std::error::Error + Send + Sync>::from("oh"))
                .map_err(|error| Refusal::new(error.to_string()).status(500)),
        }
    }
    let play = |input: &str| {
        let (code, seen) = Host::new().input(input).observe(|| crate::entry::run_async(refuses));
        (code.unwrap(), seen.refusal().unwrap(), seen.log.len())
    };
    let expected = Refusal::new("no messages").param("messages").code("empty");
    assert_eq!(play("{}"), (0, expected, 0));
    let (code, refusal, lines) = play(r#"{"messages": [{"role": "user", "content": "a"}]}"#);
    assert_eq!((code, refusal.status, lines), (1, 500, 1));
    let (code, refusal, _) = play(r#"{"levels": 9}"#);
    assert!(code == 0 && refusal.status == 400 && refusal.message.contains("from 1 to 3"));
    let (code, refusal, _) = play(r#"{"messages": 7}"#); // what the entry cannot even read
    assert_eq!((code, refusal.status, refusal.param.as_str()), (0, 400, "messages"));
    assert_eq!(refusal.message, "`messages` has to be a list");
    let failed: Refusal = Host::new()
        .run(|| model::tokenize("a").and(crate::KvFile::open("none")))
        .unwrap_err()
        .into();
    assert!(failed.status == 500 && failed.message.contains("ENOENT"), "{:?}", failed);
}

#[test]
fn the_fields_of_a_chat_are_read() {
    let request = request(
        r#"{"model": "m", "n": 3, "stream": true, "logprobs": true, "top_logprobs": 2, "mine": [1],
            "max_completion_tokens": 9, "stop": ["a", "b"], "temperature": 0, "tool_choice": "required",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "!"}]},
                {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"}],
            "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.",
                       "parameters": {"type": "object", "properties": {}}}}, {"type": "web_search"}]}"#,
    );
    let roles: Vec<&str> = request.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(request.messages[1].content, "hi!");
    let call = &request.messages[2].tool_calls[0];
    assert_eq!((call.id.as_str(), call.arguments.as_str()), ("c1", r#"{"a": 1}"#));
    assert_eq!(request.messages[2].reasoning, "hm");
    assert_eq!(request.messages[3].tool_call_id.as_deref(), Some("c1"));
    assert_eq!((request.tools.len(), request.tools[0].name.as_str()), (1, "look"));
    assert_eq!(request.tool_choice, ToolChoice::Required);
    assert_eq!((request.n, request.stream, request.logprobs), (3, true, Some(2)));
    assert_eq!(request.max_tokens, Some(9));
    let expected = crate::Sampling::new().max_tokens(9).temperature(0.0).stop("a").stop("b");
    assert_eq!(request.sampling, expected);
    assert_eq!(request.input.get("mine"), Some(&Value::Array(vec![Value::Int(1)])));
}

#[test]
fn the_items_of_a_response_are_the_same_conversation() {
    let request = request(
        r#"{"instructions": "Be kind.", "max_output_tokens": 4,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "edit", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "seen"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]}],
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "look"}}"#,
    );
    let roles: Vec<&str> = request.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    let said = &request.messages[2];
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("hm", "I look"));
    assert_eq!(said.tool_calls.len(), 2);
    assert_eq!(request.messages[4].content, "done");
    assert_eq!(request.tool_choice, ToolChoice::Tool("look".into()));
    assert_eq!((request.max_tokens, request.n), (Some(4), 1));
    let text = self::request(r#"{"input": "hi"}"#);
    assert_eq!((text.messages[0].role.as_str(), text.messages[0].content.as_str()), ("user", "hi"));
}

#[test]
fn tools_of_a_namespace_and_custom_ones_are_functions() {
    let request = request(
        r#"{"input": [{"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
                {"type": "function_call", "call_id": "c2", "name": "look", "namespace": "fs"}],
            "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"},
                {"type": "namespace", "name": "fs", "tools": [{"type": "function", "name": "look"}]}]}"#,
    );
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["patch", "fs__look"]);
    let schema =
        r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}"#;
    assert_eq!(json::encode(&request.tools[0].parameters), schema);
    let calls = &request.messages[0].tool_calls;
    assert_eq!(
        (calls[0].name.as_str(), calls[0].arguments.as_str()),
        ("patch", r#"{"input":"a\nb"}"#)
    );
    assert_eq!(calls[1].name, "fs__look");
}

#[test]
fn the_blocks_of_messages_are_the_same_conversation() {
    let request = request(
        r#"{"system": [{"type": "text", "text": "Be kind."}], "max_tokens": 5, "stop_sequences": ["x"],
            "messages": [{"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}]},
                    {"type": "text", "text": "and?"}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2"}]}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"}}"#,
    );
    let roles: Vec<&str> = request.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user", "tool"]);
    let said = &request.messages[2];
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("hm", "I look"));
    assert_eq!(said.tool_calls[0].arguments, r#"{"a":1}"#);
    assert_eq!(request.messages[3].content, "seen");
    assert_eq!(request.messages[5].tool_call_id.as_deref(), Some("t2"));
    assert_eq!(request.tools[0].parameters, Value::object([("type", "object".into())]));
    assert_eq!(request.tool_choice, ToolChoice::Required);
    let sampling = crate::Sampling::new().max_tokens(5).temperature(1.0).stop("x");
    assert_eq!(request.sampling, sampling);
}

#[test]
fn prompts_are_texts_or_tokens_one_or_several() {
    let prompts = |body: &str| request(body).prompts;
    assert_eq!(prompts(r#"{"prompt": "a"}"#), ["a"]);
    assert_eq!(prompts(r#"{"prompt": ["a", "b"]}"#), ["a", "b"]);
    assert_eq!(prompts(r#"{"prompt": [97, 98]}"#), ["ab"]);
    assert_eq!(prompts(r#"{"prompt": [[97], [98, 99]]}"#), ["a", "bc"]);
    assert_eq!(prompts("just text"), ["just text"]);
    assert_eq!(request(r#"{"prompt": "a", "logprobs": 3}"#).logprobs, Some(3));
}

#[test]
fn a_request_s_tokens_go_through_the_template() {
    let tokens = |body: &str| {
        let tokens = Host::new().run(|| {
            let request = Request::parse(body.as_bytes()).unwrap();
            assert_eq!(request.session().unwrap().tokens(), request.tokens().unwrap());
            request.tokens().unwrap()
        });
        String::from_utf8(tokens.iter().map(|token| *token as u8).collect()).unwrap()
    };
    assert_eq!(tokens(r#"{"prompt": "ab"}"#), "ab");
    let chat = tokens(r#"{"messages": [{"role": "user", "content": "hi"}]}"#);
    assert_eq!(chat, "<user>hi\n<assistant>");
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        (r#"{"messages": [{"content": "a"}]}"#, "messages", "`messages[0]` needs a `role`"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            "messages",
            "`messages[0].content` has a part of the type \"image_url\": text only",
        ),
        (
            r#"{"input": [{"type": "web"}]}"#,
            "input",
            "`input[0]` is of the type \"web\", which is not known",
        ),
        (r#"{"tools": [{"type": "function", "function": {}}]}"#, "tools", "`tools` needs a `name`"),
        (
            r#"{"tool_choice": 3}"#,
            "tool_choice",
            "`tool_choice` has to be none, auto, required, or the name of a function",
        ),
        (r#"{"prompt": [999]}"#, "prompt", "`prompt` has a token that the model does not have"),
        (r#"{"n": 0}"#, "", "n in the input has to be a whole number from 1 to 128"),
        (r#"{"temperature": "x"}"#, "", "temperature in the input has to be a number"),
    ];
    for (body, param, message) in cases {
        assert_eq!(refused(body), (param.into(), message.into()));
    }
    assert!(refused("{oh").1.contains("at byte"));
}

#[test]
fn a_response_format_is_a_constraint() {
    let constraint = |format: &str| {
        let body = ["{\"response_format\": ", format, "}"].concat();
        Host::new()
            .run(|| Request::parse(body.as_bytes()).unwrap().constraint().map(|c| c.is_some()))
    };
    assert_eq!(constraint(r#"{"type": "text"}"#), Ok(false));
    assert_eq!(constraint(r#"{"type": "json_object"}"#), Ok(true));
    let schema =
        r#"{"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}"#;
    assert_eq!(constraint(schema), Ok(true));
    assert_eq!(constraint(r#"{"type": "xml"}"#).unwrap_err().param, "response_format");
}
