//! Writes without end in a bounded KV file: the first tokens stay, of the others the last ones.

mod stream;

use std::error::Error;
use stream::Stream;
use symphony::decode::Utf8;
use symphony::json::Object;
use symphony::{model, process, Input, KvFile};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let prompt = model::tokenize(input.text("prompt")?)?;
    let info = model::info()?;
    let half = info.max_context / 2;
    let mut stream = Stream {
        kv: KvFile::create()?,
        tokens: Vec::new(),
        sinks: input.whole("sinks", 4, 0..=64)?,
        window: input.whole("window", 252, 1..=half)?,
        block: input.whole("block", 64, 1..=half / 2)?,
        max_context: info.max_context as usize,
        next: 0,
        rebuilt: 0,
    };
    let (max_tokens, report) =
        (input.whole("max_tokens", 4096, 1..=10_000_000)?, input.whole("report", 256, 1..=65_536)?);
    let sampling = input.sampling("max_tokens", 4096)?;
    let endless: Vec<(u32, f32)> = info.eos.iter().map(|end| (*end, -1e9)).collect();

    let mut chosen = None;
    for chunk in prompt.chunks(stream.block) {
        chosen = Some(stream.take(chunk, &endless, &sampling).await?);
    }
    let mut token = chosen.ok_or("the prompt is empty")?;
    let (mut text, mut piece) = (Utf8::new(), String::new());
    for count in 1..=max_tokens {
        piece.push_str(&text.push(&model::detokenize(&[token])?));
        if count % report == 0 || count == max_tokens {
            process::send(told(&stream, &piece, count)?)?;
            piece.clear();
        }
        if count < max_tokens {
            token = stream.take(&[token], &endless, &sampling).await?;
        }
    }
    Ok(())
}

/// What was written since the last report, and what it is held in.
fn told(stream: &Stream, piece: &str, count: usize) -> symphony::Result<String> {
    let held = stream.kv.stat()?;
    let told = Object::new().text("text", piece).whole("tokens", count as u64);
    let told = told.whole("entries", held.len.into()).whole("pages", held.pages.into());
    Ok(told.whole("position", stream.next as u64).whole("rebuilt", stream.rebuilt).finish())
}

#[cfg(test)]
mod tests;
