//! Several suffixes after one prefix: the prefix is computed once, and all suffixes are decoded side
//! by side in forks of it.

use std::error::Error;
use symphony::decode::Generation;
use symphony::kv::Save;
use symphony::{json, model, process, try_join_all, Errno, KvFile, Value};

symphony::main!(async run);

async fn run() -> Result<(), Box<dyn Error>> {
    let input = process::input_json()?;
    let text = input.get("prefix").and_then(Value::as_str).ok_or("the input needs a prefix")?;
    let suffixes = input.get("suffixes").and_then(Value::as_array).ok_or("and suffixes")?;
    let max_tokens = input.get("max_tokens").and_then(Value::as_u32).unwrap_or(16) as usize;

    let path = format!("parallel_suffixes/{:016x}", process::random_u64()?);
    let prefix = open_prefix(&path, text).await?;

    // Every future makes its pass before the program waits, so a step computes all of them.
    let branches = suffixes.iter().filter_map(Value::as_str).map(|suffix| {
        let prefix = &prefix;
        async move {
            let kv = prefix.fork()?;
            Generation::new(&kv, &model::tokenize(suffix)?)?.max_tokens(max_tokens).text().await
        }
    });
    for (i, text) in try_join_all(branches).await?.iter().enumerate() {
        process::send(format!(r#"{{"suffix": {}, "text": {}}}"#, i, json::quote(text)))?;
    }
    KvFile::remove(&path)?;
    Ok(())
}

/// The file of that name, or a new one with the text in it.
async fn open_prefix(path: &str, text: &str) -> symphony::Result<KvFile> {
    match KvFile::open(path) {
        Err(error) if error.errno == Errno::ENOENT => {}
        known => return known,
    }
    let kv = KvFile::create()?;
    kv.pred(&model::tokenize(text)?).none().await?;
    kv.save(path, Save::REPLACE)?;
    Ok(kv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::Host;

    #[test]
    fn the_prefix_is_computed_once_and_every_step_decodes_all_suffixes() {
        let suffixes: Vec<String> = (0..16).map(|i| format!("\"{}\"", i)).collect();
        let list = suffixes.join(",");
        let input = format!(r#"{{"prefix": "abc", "suffixes": [{}], "max_tokens": 4}}"#, list);
        // A model that never ends a text, so that all suffixes are equally long.
        let host = Host::new().input(input).model(|history| {
            (0..257)
                .map(|t| if t == 256 { -9.0 } else { ((t * history.len()) % 7) as f32 })
                .collect()
        });
        let (outcome, seen) = host.observe(|| symphony::block_on(run()));
        outcome.unwrap().unwrap();
        assert_eq!(seen.passes_per_wait, [1, 16, 16, 16, 16]);
        assert_eq!(seen.sent.len(), 16);
        assert_eq!((seen.files_left, seen.tickets_left, seen.names.len()), (0, 0, 0));
    }
}
