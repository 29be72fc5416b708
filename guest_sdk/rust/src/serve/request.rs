//! The request of a client, of any of the routes.

use super::reading::{Field, Read};
use super::Refusal;
use crate::constraint::Constraint;
use crate::entry::FromInput;
use crate::error::{Errno, Result};
use crate::input::{Input, InputError, InputResult};
use crate::json;
use crate::model;
use crate::process;
use crate::sampling::Sampling;
use crate::session::Session;
use crate::value::Value;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What a client asks of a program that it calls as a model.
///
/// Requests of `/v1/chat/completions`, `/v1/responses` and `/v1/messages` have `messages`, those of
/// `/v1/completions` have `prompts`. An entry may take it: a request that is wrong is then answered
/// with status 400 and words.
#[derive(Clone, Debug)]
pub struct Request {
    /// The conversation, oldest first; instructions are its first message, of the role `system`.
    pub messages: Vec<Message>,
    /// The texts to continue.
    pub prompts: Vec<String>,
    /// The functions that the answer may call.
    pub tools: Vec<Tool>,
    /// Which of them it has to call.
    pub tool_choice: ToolChoice,
    /// How many answers it has to give to each prompt: [`Answer::several`](super::Answer::several).
    pub n: usize,
    /// Whether the client reads the answer as it comes; a program need not know.
    pub stream: bool,
    /// How many tokens an answer may have, where the client says it.
    pub max_tokens: Option<usize>,
    /// How many likeliest tokens the client wants with each token; `None`: no log-probabilities.
    pub logprobs: Option<u32>,
    /// How to generate: the client's `temperature` (1 where it gives none), `top_p`, `seed`, `stop` and
    /// the like, with `max_tokens`.
    pub sampling: Sampling,
    /// All fields as they came, the client's own among them.
    pub input: Input,
}

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `"system"`, `"developer"`, `"user"`, `"assistant"` or `"tool"`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// The reasoning before an assistant's text.
    pub reasoning: String,
    /// The calls that an assistant has made.
    pub tool_calls: Vec<ToolCall>,
    /// Of the role `tool`: the id of the call that it answers.
    pub tool_call_id: Option<String>,
}

/// A call of a tool in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, which the answer to it repeats.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

/// A function that the client offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for a model to read.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// Which tools an answer has to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// None.
    None,
    /// As it sees fit.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Tool(String),
}

impl FromInput for Request {
    fn from_input(input: Vec<u8>) -> InputResult<Request> {
        Request::parse(&input).map_err(InputError::of)
    }
}

impl Request {
    /// This run's.
    pub fn read() -> core::result::Result<Request, Refusal> {
        Request::parse(&process::input())
    }

    /// That in a text: JSON, as a client sends it.
    pub fn parse(text: &[u8]) -> core::result::Result<Request, Refusal> {
        let input = Input::parse(text).map_err(|error| error.refusal())?;
        let wrong = |error: InputError| error.refusal();
        let named = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
        let most = named.iter().find(|name| input.get(name).is_some()).unwrap_or(&named[2]);
        let mut sampling = input.sampling(most, u32::MAX).map_err(wrong)?;
        let max_tokens = input.get(most).map(|_| input.whole(most, 1, 1..=u32::MAX)).transpose();
        let max_tokens = max_tokens.map_err(wrong)?;
        if max_tokens.is_none() {
            sampling.max_tokens = None;
        }
        if input.get("temperature").is_none() {
            sampling = sampling.temperature(1.0);
        }
        for stop in input.texts("stop_sequences").map_err(wrong)? {
            sampling = sampling.stop(stop);
        }
        Ok(Request {
            messages: read_messages(&input)?,
            prompts: read_prompts(&input)?,
            tools: read_tools(&input)?,
            tool_choice: read_choice(&input)?,
            n: input.whole("n", 1, 1..=128).map_err(wrong)?,
            stream: input.flag("stream").map_err(wrong)?,
            max_tokens,
            logprobs: read_logprobs(&input).map_err(wrong)?,
            sampling,
            input,
        })
    }

    /// The conversation's or the first prompt's tokens. A conversation goes through the model's chat
    /// template with its tools, ready for the answer.
    #[track_caller]
    pub fn tokens(&self) -> Result<Vec<u32>> {
        match self.prompts.first() {
            Some(prompt) => model::tokenize(prompt),
            None => model::chat_with(&self.conversation()),
        }
    }

    /// A session with these tokens, whose next reply is the answer.
    #[track_caller]
    pub fn session(&self) -> Result<Session> {
        let mut session = Session::new("")?;
        session.rewrite(&self.tokens()?)?;
        Ok(session)
    }

    /// What `response_format` holds the answer to: `None` for text.
    pub fn constraint(&self) -> core::result::Result<Option<Constraint>, Refusal> {
        let format = match self.input.get("response_format") {
            Some(format) => Some(format),
            None => self.input.get("text").and_then(|text| text.get("format")),
        };
        let format = match format {
            Some(value) => Field { value, place: "response_format" },
            None => return Ok(None),
        };
        let schema = match format.need("type")? {
            "text" => return Ok(None),
            "json_object" => String::from(r#"{"type": "object"}"#),
            "json_schema" => {
                let inner = format.get("json_schema").unwrap_or(format.value);
                let schema = inner.get("schema").ok_or_else(|| format.refuse("needs a schema"))?;
                json::encode(schema)
            }
            _ => return Err(format.refuse("is of type text, json_object or json_schema")),
        };
        Constraint::json_schema(&schema).map(Some).map_err(|refused| {
            if refused.errno == Errno::EINVAL {
                format.refuse(&refused.words)
            } else {
                Refusal::new(refused.to_string()).status(503)
            }
        })
    }

    /// The conversation as [`model::chat_with`] takes it.
    fn conversation(&self) -> Value {
        let messages = self.messages.iter().map(Message::to_value).collect();
        let mut pairs = Vec::from([("messages", Value::Array(messages))]);
        if !self.tools.is_empty() && self.tool_choice != ToolChoice::None {
            let tools = self.tools.iter().map(Tool::to_value).collect();
            pairs.push(("tools", Value::Array(tools)));
        }
        Value::object(pairs)
    }
}

impl Message {
    fn to_value(&self) -> Value {
        let mut pairs = Vec::from([
            ("role", self.role.as_str().into()),
            ("content", self.content.as_str().into()),
        ]);
        if !self.reasoning.is_empty() {
            pairs.push(("reasoning_content", self.reasoning.as_str().into()));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(ToolCall::to_value).collect();
            pairs.push(("tool_calls", Value::Array(calls)));
        }
        if let Some(call) = &self.tool_call_id {
            pairs.push(("tool_call_id", call.as_str().into()));
        }
        Value::object(pairs)
    }
}

impl ToolCall {
    fn to_value(&self) -> Value {
        let arguments = json::decode(self.arguments.as_bytes());
        let function = Value::object([
            ("name", self.name.as_str().into()),
            ("arguments", arguments.unwrap_or_else(|_| self.arguments.as_str().into())),
        ]);
        let kind = Value::from("function");
        Value::object([("id", self.id.as_str().into()), ("type", kind), ("function", function)])
    }
}

impl Tool {
    fn to_value(&self) -> Value {
        let function = Value::object([
            ("name", self.name.as_str().into()),
            ("description", self.description.as_str().into()),
            ("parameters", self.parameters.clone()),
        ]);
        Value::object([("type", "function".into()), ("function", function)])
    }
}

fn field<'a>(input: &'a Input, place: &'a str) -> Option<Field<'a, 'a>> {
    input.get(place).map(|value| Field { value, place })
}

fn read_logprobs(input: &Input) -> InputResult<Option<u32>> {
    match input.get("logprobs") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(input.whole("top_logprobs", 0, 0..=20)? as u32)),
        Some(_) => Ok(Some(input.whole("logprobs", 0, 0..=20)? as u32)),
    }
}

// --- Prompts -------------------------------------------------------------------------------------

fn read_prompts(input: &Input) -> Read<Vec<String>> {
    let prompt = match field(input, "prompt") {
        Some(prompt) => prompt,
        None => return Ok(Vec::new()),
    };
    let is_number = |value: &Value| matches!(value, Value::Int(_) | Value::UInt(_));
    match prompt.value {
        Value::Array(items) if !items.first().map_or(true, is_number) => {
            items.iter().map(|value| read_prompt(Field { value, ..prompt })).collect()
        }
        _ => Ok([read_prompt(prompt)?].into()),
    }
}

/// A text, or that of token ids.
fn read_prompt(prompt: Field<'_, '_>) -> Read<String> {
    let what = "has to be a text, token ids, or a list of several of either";
    match prompt.value {
        Value::Str(text) => Ok(text.clone()),
        Value::Array(ids) => {
            let ids: Option<Vec<u32>> = ids.iter().map(Value::as_u32).collect();
            let text = model::detokenize(&ids.ok_or_else(|| prompt.refuse(what))?);
            let text = text.map_err(|_| prompt.refuse("has a token that the model does not have"));
            Ok(String::from_utf8_lossy(&text?).into_owned())
        }
        _ => Err(prompt.refuse(what)),
    }
}

// --- Conversations -------------------------------------------------------------------------------

fn read_messages(input: &Input) -> Read<Vec<Message>> {
    let mut messages = Vec::new();
    for name in ["system", "instructions"] {
        if let Some(told) = field(input, name) {
            let content = content_of(told)?;
            messages.push(Message { role: "system".into(), content, ..Message::default() });
        }
    }
    match (field(input, "messages"), field(input, "input")) {
        (Some(told), _) => read_items(told, &mut messages)?,
        (None, Some(Field { value: Value::Str(text), .. })) => {
            let content = text.clone();
            messages.push(Message { role: "user".into(), content, ..Message::default() });
        }
        (None, Some(told)) => read_items(told, &mut messages)?,
        (None, None) => {}
    }
    Ok(messages)
}

fn read_items(told: Field<'_, '_>, messages: &mut Vec<Message>) -> Read<()> {
    for (number, value) in told.array()?.iter().enumerate() {
        let place = format!("{}[{}]", told.place, number);
        read_item(Field { value, place: &place }, messages)?;
    }
    Ok(())
}

/// A message, or an item of `/v1/responses`: a call, its output, reasoning.
fn read_item(item: Field<'_, '_>, messages: &mut Vec<Message>) -> Read<()> {
    match item.text("type")?.unwrap_or("message") {
        "message" => read_message(item, messages),
        kind @ ("function_call" | "custom_tool_call") => {
            let arguments = match (kind, item.text("input")?) {
                ("custom_tool_call", Some(text)) => {
                    json::Object::new().text("input", text).finish()
                }
                _ => item.text("arguments")?.unwrap_or("{}").into(),
            };
            let name = joined(item.text("namespace")?, item.need("name")?);
            let called = ToolCall { id: item.need("call_id")?.into(), name, arguments };
            assistant(messages).tool_calls.push(called);
            Ok(())
        }
        "function_call_output" | "custom_tool_call_output" => {
            let place = item.member("output");
            let output = item.get("output").map(|value| content_of(Field { value, place: &place }));
            messages.push(Message {
                role: "tool".into(),
                content: output.transpose()?.unwrap_or_default(),
                tool_call_id: Some(item.need("call_id")?.into()),
                ..Message::default()
            });
            Ok(())
        }
        "reasoning" => {
            for name in ["content", "summary"] {
                let place = item.member(name);
                if let Some(value) = item.get(name).filter(|value| value.as_array().is_some()) {
                    let text = content_of(Field { value, place: &place })?;
                    assistant(messages).reasoning.push_str(&text);
                }
            }
            Ok(())
        }
        kind => Err(item.refuse(&format!("is of the type {:?}, which is not known", kind))),
    }
}

/// The assistant's message that items belong to which follow each other.
fn assistant(messages: &mut Vec<Message>) -> &mut Message {
    let goes_on = messages.last().map_or(false, |message| message.role == "assistant");
    if !goes_on {
        messages.push(Message { role: "assistant".into(), ..Message::default() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn read_message(item: Field<'_, '_>, messages: &mut Vec<Message>) -> Read<()> {
    let mut message = Message { role: item.need("role")?.into(), ..Message::default() };
    message.tool_call_id = item.text("tool_call_id")?.map(String::from);
    for name in ["reasoning_content", "reasoning"] {
        if let Some(text) = item.text(name)? {
            message.reasoning = text.into();
        }
    }
    let place = item.member("content");
    match item.get("content") {
        Some(value @ Value::Array(parts)) => {
            let content = Field { value, place: &place };
            for part in parts {
                read_part(Field { value: part, ..content }, &mut message, messages)?;
            }
            // All of it was answers to calls.
            if message.content.is_empty() && parts.iter().all(is_result) && !parts.is_empty() {
                return Ok(());
            }
        }
        Some(value) => message.content = Field { value, place: &place }.str()?.into(),
        None => {}
    }
    let place = item.member("tool_calls");
    if let Some(value) = item.get("tool_calls") {
        for value in (Field { value, place: &place }).array()? {
            message.tool_calls.push(read_call(Field { value, place: &place })?);
        }
    }
    // An assistant's text belongs to the reasoning in the item before it.
    match messages.last_mut() {
        Some(last) if message.role == "assistant" && last.opens_only() => {
            last.content = message.content;
            last.reasoning.push_str(&message.reasoning);
            last.tool_calls = message.tool_calls;
        }
        _ => messages.push(message),
    }
    Ok(())
}

impl Message {
    /// Whether it is an assistant's of which only the reasoning is there.
    fn opens_only(&self) -> bool {
        self.role == "assistant" && self.content.is_empty() && self.tool_calls.is_empty()
    }
}

fn is_result(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str) == Some("tool_result")
}

/// A part of a message: text, or what `/v1/messages` has there. Answers to calls become messages of
/// their own, before the one that they stand in.
fn read_part(part: Field<'_, '_>, message: &mut Message, messages: &mut Vec<Message>) -> Read<()> {
    match part.need("type")? {
        "text" | "input_text" | "output_text" => message.content.push_str(part.need("text")?),
        "thinking" => message.reasoning.push_str(part.need("thinking")?),
        "redacted_thinking" => {}
        "tool_use" => {
            let arguments = part.get("input").map_or_else(|| "{}".into(), json::encode);
            let (id, name) = (part.need("id")?.into(), part.need("name")?.into());
            message.tool_calls.push(ToolCall { id, name, arguments });
        }
        "tool_result" => {
            let place = part.member("content");
            let told = part.get("content").map(|value| content_of(Field { value, place: &place }));
            messages.push(Message {
                role: "tool".into(),
                content: told.transpose()?.unwrap_or_default(),
                tool_call_id: Some(part.need("tool_use_id")?.into()),
                ..Message::default()
            });
        }
        kind => return Err(part.refuse(&format!("has a part of the type {:?}: text only", kind))),
    }
    Ok(())
}

/// A text, or the texts of parts.
fn content_of(content: Field<'_, '_>) -> Read<String> {
    if let Value::Str(text) = content.value {
        return Ok(text.clone());
    }
    let parts = content.array()?.iter().map(|value| Field { value, ..content });
    parts.map(|part| part.text("text").map(Option::unwrap_or_default)).collect()
}

fn read_call(call: Field<'_, '_>) -> Read<ToolCall> {
    let place = call.member("function");
    let value = call.get("function").ok_or_else(|| call.refuse("needs a `function`"))?;
    let function = Field { value, place: &place };
    Ok(ToolCall {
        id: call.need("id")?.into(),
        name: function.need("name")?.into(),
        arguments: function.text("arguments")?.unwrap_or("{}").into(),
    })
}

// --- Tools ---------------------------------------------------------------------------------------

/// The tools that the client runs, in the form of any of the routes, all as functions. What a server
/// would do itself, such as search, is left out.
fn read_tools(input: &Input) -> Read<Vec<Tool>> {
    let mut tools = Vec::new();
    if let Some(told) = field(input, "tools") {
        add_tools(told, "", &mut tools)?;
    }
    Ok(tools)
}

/// Those of a namespace have its name before their own.
fn add_tools(told: Field<'_, '_>, before: &str, tools: &mut Vec<Tool>) -> Read<()> {
    for value in told.array()? {
        let tool = Field { value, ..told };
        let schema = tool.get("input_schema");
        let kind = tool.text("type")?.unwrap_or("function");
        if let ("namespace", Some(value)) = (kind, tool.get("tools")) {
            add_tools(Field { value, ..told }, &joined(tool.text("name")?, ""), tools)?;
            continue;
        }
        if !matches!(kind, "function" | "custom") && schema.is_none() {
            continue;
        }
        let function = Field { value: tool.get("function").unwrap_or(value), ..told };
        let schema = schema.or_else(|| function.get("parameters")).cloned();
        tools.push(Tool {
            name: [before, function.need("name")?].concat(),
            description: function.text("description")?.unwrap_or_default().into(),
            parameters: schema.unwrap_or_else(|| default_schema(kind)),
        });
    }
    Ok(())
}

/// A custom tool takes a text: as a function it has that as `input`.
fn default_schema(kind: &str) -> Value {
    let object = ("type", "object".into());
    if kind != "custom" {
        return Value::object([object]);
    }
    let input = Value::object([("input", Value::object([("type", "string".into())]))]);
    let required = Value::Array([Value::from("input")].into());
    Value::object([object, ("properties", input), ("required", required)])
}

/// The name by which a function of a namespace is called.
fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.into(), |namespace| [namespace, "__", name].concat())
}

fn read_choice(input: &Input) -> Read<ToolChoice> {
    let choice = match field(input, "tool_choice") {
        Some(choice) => choice,
        None => return Ok(ToolChoice::Auto),
    };
    let kind = choice.value.as_str().or_else(|| choice.get("type").and_then(Value::as_str));
    match kind {
        Some("none") => Ok(ToolChoice::None),
        Some("auto") => Ok(ToolChoice::Auto),
        Some("required" | "any") => Ok(ToolChoice::Required),
        Some("function" | "tool") => {
            let named = Field { value: choice.get("function").unwrap_or(choice.value), ..choice };
            Ok(ToolChoice::Tool(named.need("name")?.into()))
        }
        _ => Err(choice.refuse("has to be none, auto, required, or the name of a function")),
    }
}
