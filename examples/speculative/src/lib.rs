//! Greedy decoding, several tokens a pass: what the text itself has said after these words before is
//! guessed, and one pass over the tree of guesses says which are right.

mod guess;

use guess::{Guesser, Tree};
use std::error::Error;
use symphony::json::Object;
use symphony::{model, process, Input, KvFile, Sampling};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let prompt = model::tokenize(input.text("prompt")?)?;
    let max_tokens = input.whole("max_tokens", 64, 1..=8192)?;
    let guesser = Guesser {
        longest: input.whole("match", 3, 1..=16)?,
        branches: input.whole("branches", 3, 0..=8)?,
        depth: input.whole("depth", 8, 1..=24)?,
    };
    let eos = model::info()?.eos;
    let (last, before) = prompt.split_last().ok_or("the prompt is empty")?;
    let kv = KvFile::create()?;
    if !before.is_empty() {
        kv.prefill(before).await?;
    }
    let plain = if input.flag("compare")? { Some(kv.fork()?) } else { None };

    let began = process::clock_ms();
    let mut decoding = Decoding { kv, tokens: prompt.clone(), passes: 0 };
    while decoding.tokens.len() < prompt.len() + max_tokens
        && decoding.go_on(&guesser, &eos).await?
    {}
    let ms = process::clock_ms() - began;
    decoding.tokens.truncate(prompt.len() + max_tokens);
    let tokens = &decoding.tokens[prompt.len()..];

    let text = String::from_utf8_lossy(&model::detokenize(tokens)?).into_owned();
    let told = Object::new()
        .text("text", &text)
        .whole("tokens", tokens.len() as u64)
        .whole("passes", decoding.passes)
        .decimal("tokens_per_pass", tokens.len() as f64 / decoding.passes.max(1) as f64)
        .decimal("tokens_per_second", tokens.len() as f64 * 1e3 / ms.max(1) as f64);
    let told = match plain {
        None => told,
        Some(kv) => compare(told, &kv, *last, tokens, &eos).await?,
    };
    Ok(process::send(told.finish())?)
}

/// Adds what the server's own loop makes of the same prompt, and how fast.
async fn compare(
    told: Object,
    kv: &KvFile,
    last: u32,
    tokens: &[u32],
    eos: &[u32],
) -> symphony::Result<Object> {
    let began = process::clock_ms();
    let most = tokens.len() + 1; // one more: it must not go on where this has ended
    let plain = kv.stream(&[last], &Sampling::new().max_tokens(most)).rest().await?;
    let ms = process::clock_ms() - began;
    let same = plain.iter().map(|choice| &choice.token).take(tokens.len()).eq(tokens)
        && plain
            .get(tokens.len())
            .map_or(true, |next| eos.contains(&next.token) || plain.len() == most);
    Ok(told
        .flag("same", same)
        .decimal("plain_tokens_per_second", plain.len() as f64 * 1e3 / ms.max(1) as f64))
}

struct Decoding {
    /// All of the text but its last token.
    kv: KvFile,
    tokens: Vec<u32>,
    passes: u64,
}

impl Decoding {
    /// One pass: adds every guess that is right and the token behind it. False at the text's end.
    async fn go_on(&mut self, guesser: &Guesser, eos: &[u32]) -> symphony::Result<bool> {
        let known = self.tokens.len() as u32 - 1;
        let tree = guesser.guess(&self.tokens);
        let best = self.kv.pred(&tree.tokens).parents(&tree.parents).all().argmax().await?;
        self.passes += 1;
        let mut path = vec![0];
        let ended = loop {
            let at = path[path.len() - 1];
            let token = best[at].token;
            if eos.contains(&token) {
                break true;
            }
            self.tokens.push(token);
            match tree.child(at, token) {
                Some(right) => path.push(right),
                None => break false,
            }
        };
        self.keep(known, &path, &tree)?;
        Ok(!ended)
    }

    /// Of the tree's entries, which are behind `known` others, keeps the path's.
    fn keep(&mut self, known: u32, path: &[usize], tree: &Tree) -> symphony::Result<()> {
        let straight = path.iter().enumerate().take_while(|(depth, node)| depth == *node).count();
        if straight == path.len() {
            if path.len() == tree.tokens.len() {
                return Ok(());
            }
            return self.kv.truncate(known + path.len() as u32);
        }
        let entries = path[straight..].iter().map(|node| known + *node as u32);
        let mut ranges = vec![0..known + straight as u32];
        ranges.extend(entries.map(|entry| entry..entry + 1));
        self.kv = self.kv.extract(&ranges)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
