//! The applications that the evaluation measures, as programs: each does what its client in
//! `applications.py` does by prompts, with the same tokens.
//!
//! They are examples/ with lengths that are fixed, so that a model with random weights will do:
//! prompts come as token ids, and no text ends early.

mod agents;
mod given;
mod thoughts;

use given::Given;
use std::error::Error;
use symphony::kv::Save;
use symphony::{json, model, process, KvFile, Sampling};

type Answer = Result<Vec<u32>, Box<dyn Error>>;

#[symphony::main]
async fn run() -> Result<(), Box<dyn Error>> {
    let given = Given::read()?;
    let answer = match given.text("application")?.as_str() {
        "prepare" => prepare(&given).await?,
        "completion" => completion(&given).await?,
        "react" => agents::react(&given).await?,
        "swarm" => agents::swarm(&given).await?,
        "got" => thoughts::graph(&given).await?,
        "tot" => thoughts::tree(&given).await?,
        "skeleton" => thoughts::skeleton(&given).await?,
        other => return Err(format!("no application {:?}", other).into()),
    };
    let text = String::from_utf8_lossy(&model::detokenize(&answer)?).into_owned();
    process::send(format!(r#"{{"tokens": {:?}, "text": {}}}"#, answer, json::quote(&text)))?;
    Ok(())
}

/// Computes what all runs have in common, once, and gives it a name.
async fn prepare(given: &Given) -> Answer {
    let kv = KvFile::create()?;
    kv.prefill(&given.tokens("context")?).await?;
    kv.save(&given.text("name")?, Save::REPLACE)?;
    Ok(Vec::new())
}

async fn completion(given: &Given) -> Answer {
    let kv = KvFile::create()?;
    Ok(go_on(&kv, &given.tokens("prompt")?, given.number("new")?).await?)
}

/// The file that `prepare` has named.
fn context(given: &Given) -> symphony::Result<KvFile> {
    KvFile::open(given.text("name").as_deref().unwrap_or_default())
}

/// `new` tokens behind the file and `tokens`; the last one is not in the file then.
async fn go_on(kv: &KvFile, tokens: &[u32], new: u32) -> symphony::Result<Vec<u32>> {
    let exactly = Sampling::new().max_tokens(new as usize).exact(true).lookahead(new).chunk(new);
    let chosen = kv.stream(tokens, &exactly).rest().await?;
    Ok(chosen.iter().map(|choice| choice.token).collect())
}
