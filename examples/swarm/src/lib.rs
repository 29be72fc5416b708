//! A swarm: agents that share one context and tell each other what they wrote. Each agent is a child
//! of this program, with a copy of the context's KV file, and a channel to the next agent.

use std::error::Error;
use symphony::json::{self, list, Object};
use symphony::kv::Rights;
use symphony::process::{self, Child};
use symphony::prompt::fill;
use symphony::{try_join_all, Input, KvFile, Session, Value};

symphony::entry!("agent", async agent);

const PROMPT: &str = "\"\"\"A store of records, kept in a file.\"\"\"\n\nimport json\n\n\n\
    class Store:\n    def __init__(self, path):\n        self.path = path\n        self.items = {}\n";
const ROLE: &str = "\n    # Part {agent} of the class.\n    def";
const HEARD: &str =
    "\n\n    # What comes before it.\n    def{text}\n\n    # Part {agent}.\n    def";
const CONCLUSION: &str = "\n\n\ndef main():\n    ";

/// Shares the context out, and concludes from what the agents wrote.
#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let mut context = Session::new(input.text_or("prompt", PROMPT)?)?;
    context.flush().await?;

    let mut task = input.clone();
    task.set("prompt", Value::Nil); // the agents have its KV
    task.set("channels", Value::Str(format!("swarm/{:016x}", process::random_u64()?)));
    let children = (0..input.whole("agents", 4, 1..=64)?).map(|agent| {
        task.set("agent", Value::UInt(agent as u64));
        let child = Child::new().entry("agent").input(task.to_bytes());
        let started = child.grant(context.kv(), Rights::READ, "context").start();
        async move { started.await?.join().await }
    });
    let ended = try_join_all(children).await?;

    let (mut reports, mut generated, mut prefilled) = (Vec::new(), 0, 0);
    for (agent, ended) in ended.into_iter().enumerate() {
        if ended.code != 0 {
            return Err(format!("agent {} failed: its log says why", agent).into());
        }
        let report = json::decode(&ended.output)?;
        let count = |name| report.get(name).and_then(Value::as_u64).unwrap_or(0);
        generated += count("generated");
        prefilled += count("prefilled");
        let role = input.text_or("role", ROLE)?;
        tell(&mut context, &[role, "{text}"].concat(), agent, report.get("tokens"))?;
        reports.push(String::from_utf8(ended.output)?);
    }
    context.append(input.text_or("conclusion", CONCLUSION)?)?;
    let reply = context.reply(&input.sampling("conclusion_tokens", 24)?).await?;
    let usage = context.usage();
    let result = Object::new().text("text", &reply.text).raw("agents", &list(&reports));
    let result = result.whole("generated", generated + usage.generated);
    process::send(result.whole("prefilled", prefilled + usage.prefilled).finish())?;
    Ok(())
}

/// Writes `rounds` times: first from the context and its role, then from what the agent before it has
/// written, too. Its last text is its result.
async fn agent(input: Input) -> Result<Object, Box<dyn Error>> {
    let (agent, agents) = (input.whole("agent", 0, 0..=63)?, input.whole("agents", 4, 1..=64)?);
    let channels = input.text("channels")?;
    let sampling = input.sampling("tokens", 24)?.branch(agent);

    let mut session = Session::copy(&KvFile::granted("context")?)?;
    tell(&mut session, input.text_or("role", ROLE)?, agent, None)?;
    let mut reply = session.reply(&sampling).await?;
    for _ in 1..input.whole("rounds", 2, 1..=64)? {
        let next = format!("{}/{}", channels, (agent + 1) % agents);
        process::channel_send(&next, format!("{:?}", reply.tokens))?;
        let heard = process::channel_recv(&format!("{}/{}", channels, agent)).await?;
        let heard = json::decode(&heard)?;
        tell(&mut session, input.text_or("heard", HEARD)?, agent, Some(&heard))?;
        reply = session.reply(&sampling).await?;
    }
    let report = Object::new().text("text", &reply.text);
    let report = report.raw("tokens", &format!("{:?}", reply.tokens));
    let usage = session.usage();
    Ok(report.whole("generated", usage.generated).whole("prefilled", usage.prefilled))
}

/// Says a template to an agent, numbered from 1, with these tokens in the place of its text: as tokens,
/// so that the model reads exactly what another wrote.
fn tell(
    session: &mut Session,
    template: &str,
    agent: usize,
    text: Option<&Value>,
) -> symphony::Result<()> {
    let number = format!("{}", agent + 1);
    let (before, after) = template.split_once("{text}").unwrap_or((template, ""));
    session.append(&fill(before, &[("agent", &number)]))?;
    let tokens = text.and_then(Value::as_array).unwrap_or_default();
    session.append_tokens(&tokens.iter().filter_map(Value::as_u32).collect::<Vec<_>>())?;
    session.append(&fill(after, &[("agent", &number)]))
}
