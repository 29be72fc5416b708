//! The model writes `<read>name</read>`, the program looks the name up, by a tool or over HTTP, writes
//! what it found behind it, and the model goes on: in the same KV file, in the middle of its sentence.

use std::error::Error;
use symphony::decode::Finish;
use symphony::json::Object;
use symphony::prompt::fill;
use symphony::{http, process, tool, Input, Session, Value};

const BEGIN: &str = "<read>";
const END: &str = "</read>";
const INSERT: &str = "\n# {found}\n";

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let source = Source::of(&input)?;
    let insert = input.text_or("insert", INSERT)?;
    // Models that do not write tags: these are written for them, each after so many tokens.
    let forced = input.texts("force")?;
    let pause = input.whole("force_after", 8, 1..=4096)?;

    let mut left = input.whole("max_tokens", 64, 1..=131_072)?;
    let mut text = Session::new(input.text("prompt")?)?;
    for read in 0..=input.whole("reads", 8, 0..=1024)? {
        let force = forced.get(read);
        let most = if force.is_some() { left.min(pause) } else { left };
        let reply =
            text.reply(&input.sampling("max_tokens", 64)?.max_tokens(most).stop(END)).await?;
        left -= reply.tokens.len().min(left);
        process::send(Object::new().text("text", &reply.text).finish())?;

        let name = match (force, reply.text.rsplit_once(BEGIN)) {
            (Some(name), _) => {
                text.append(&[BEGIN, name, END].concat())?;
                name
            }
            (None, Some((_, name))) if matches!(reply.finish, Finish::Text(_)) => {
                text.append(END)?;
                name.trim()
            }
            _ => break, // it has come to its end without asking
        };
        let found = source.look_up(name).await?;
        text.append(&fill(insert, &[("found", &found)]))?;
        process::send(Object::new().text("read", name).text("found", &found).finish())?;
        if left == 0 {
            break;
        }
    }
    let usage = text.usage();
    let end = Object::new().whole("tokens", text.tokens().len() as u64);
    let end = end.whole("prefilled", usage.prefilled).whole("generated", usage.generated);
    process::send(end.finish())?;
    Ok(())
}

/// Where names are looked up.
enum Source<'a> {
    Tool(&'a str, &'a str),
    Url(&'a str),
}

impl<'a> Source<'a> {
    fn of(input: &'a Input) -> Result<Source<'a>, Box<dyn Error>> {
        let name = input.text_or("tool", "example.signature")?;
        Ok(match input.text_or("url", "")? {
            "" => Source::Tool(name, input.text_or("argument", "name")?),
            url => Source::Url(url),
        })
    }

    /// What is known of a name; a source that fails says so, and the model may do something else.
    async fn look_up(&self, name: &str) -> symphony::Result<String> {
        match self {
            Source::Tool(tool, argument) => {
                let arguments = Value::object([(*argument, name.into())]);
                Ok(tool::call(tool, &arguments).await?.content)
            }
            Source::Url(url) => {
                let url = fill(url, &[("name", &escaped(name))]);
                let answer = http::get(&url).send().await?;
                Ok(match answer.ok() {
                    true => answer.text().trim().to_string(),
                    false => format!("{}: there is nothing ({})", name, answer.status),
                })
            }
        }
    }
}

/// A name as it may stand in a URL's path or query: what a model writes is anybody's.
fn escaped(name: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let mut out = String::new();
    for byte in name.bytes() {
        if safe(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{:02X}", byte));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen, EOS};
    use symphony::{http::Response, json, tool::Answer};

    fn play(host: Host, input: &str) -> (Vec<Value>, Seen) {
        let (outcome, seen) =
            host.input(input).observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        (seen.sent.iter().map(|message| json::decode(message).unwrap()).collect(), seen)
    }

    /// A model that asks for two names, and is told their signatures by a tool.
    fn asking() -> Host {
        let model = |history: &[u32]| {
            let text: String = history.iter().map(|t| char::from(*t as u8)).collect();
            let script = match text.matches("# sig").count() {
                0 => "go: use <read>a.b</read>",
                1 => "\n# sig(a.b)\nand < or <read> c </read>",
                _ => "\n# sig(c)\ndone",
            };
            let at = text.rfind(&script[..3]).unwrap_or(0);
            let next = script.as_bytes().get(text.len() - at).map_or(EOS, |byte| u32::from(*byte));
            let mut logits = vec![0.0; 257];
            logits[next as usize] = 9.0;
            logits
        };
        Host::new().model(model).tool("example.signature", |arguments| {
            let name = arguments.get("name").and_then(Value::as_str).unwrap_or("?");
            Answer { ok: true, content: format!("sig({})", name) }
        })
    }

    #[test]
    fn it_reads_what_the_model_asks_for_and_goes_on() {
        let (sent, _) = play(asking(), r#"{"prompt": "go:"}"#);
        let told = |key| -> Vec<&str> {
            sent.iter().filter_map(|message| message.get(key).and_then(Value::as_str)).collect()
        };
        assert_eq!(told("read"), ["a.b", "c"]);
        assert_eq!(told("found"), ["sig(a.b)", "sig(c)"]);
        assert_eq!(told("text"), [" use <read>a.b", "and < or <read> c ", "done"]);
    }

    #[test]
    fn what_is_forced_is_looked_up_over_http_and_no_name_leaves_its_place() {
        let site = |request: &Value| {
            let url = request.get("url").and_then(Value::as_str)?;
            let status = if url.ends_with("b") { 200 } else { 404 };
            Some(Response { status, headers: Vec::new(), body: format!(" {}\n", url).into() })
        };
        let input = r#"{"prompt": "x", "url": "http://a/{name}", "force": ["a b", "../c?d"],
            "force_after": 3, "max_tokens": 10, "ignore_eos": true}"#;
        let (sent, seen) = play(Host::new().model(|_| vec![1.0; 257]).http(site), input);
        assert_eq!(sent[1].get("found").unwrap().as_str(), Some("http://a/a%20b"));
        let refused = sent[3].get("found").unwrap().as_str();
        assert_eq!(refused, Some("../c?d: there is nothing (404)"));
        let count = |key| sent[5].get(key).and_then(Value::as_u64).unwrap();
        assert_eq!(count("generated"), 10);
        assert_eq!(count("tokens"), count("prefilled") + count("generated") - 2);
        assert_eq!(seen.passes_per_wait.iter().sum::<usize>(), 10);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a.b-c_d~"), "a.b-c_d~");
        assert_eq!(escaped("/?#%&\u{e9}"), "%2F%3F%23%25%26%C3%A9");
    }
}
