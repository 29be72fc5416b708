//! Instances of a JSON schema: several side by side from one prompt, the likeliest first.

use std::error::Error;
use symphony::decode::Finish;
use symphony::json::{self, Object};
use symphony::{model, process, try_join_all, Constraint, Input, KvFile, Sampling, Value};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let schema = input.get("schema").map(json::encode).ok_or("the input needs a schema")?;
    // What is wrong with it, and where, is the run's error.
    let schema = Constraint::json_schema(&schema)?;
    let prompt = model::tokenize(input.text("prompt")?)?;
    let count = input.whole("n", 4, 1..=64)? as u64;
    let sampling = Sampling::new()
        .max_tokens(input.whole("max_tokens", 256, 1..=4096)?)
        .temperature(input.number("temperature", 1.0)? as f32)
        .constraint(&schema);
    let seed = input.get("seed").and_then(Value::as_u64).unwrap_or(1);

    let (last, before) = prompt.split_last().ok_or("the prompt is empty")?;
    let start = KvFile::create()?;
    if !before.is_empty() {
        start.prefill(before).await?;
    }
    let written = try_join_all((0..count).map(|number| {
        let (start, sampling) = (&start, sampling.clone().seed(seed + number));
        async move {
            let kv = start.fork()?;
            let mut text = kv.generate(&[*last], &sampling);
            let whole = text.text().await?;
            let ended = matches!(text.finish(), Some(Finish::Token(_)));
            Ok::<_, symphony::Error>((text.logprob(), ended, whole))
        }
    }));
    // One that was cut off by `max_tokens` is none; all others can be read.
    let mut found: Vec<_> = written.await?.into_iter().filter(|(_, ended, _)| *ended).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (logprob, _, text) in &found {
        let value = json::decode(text.as_bytes())?;
        let told = Object::new().raw("value", &json::encode(&value)).decimal("logprob", *logprob);
        process::send(told.finish())?;
    }
    process::log(process::Level::Info, format!("{} of {} were finished", found.len(), count));
    Ok(())
}
