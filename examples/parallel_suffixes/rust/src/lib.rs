//! Several suffixes after one prefix: the prefix is computed once, and all suffixes are decoded side
//! by side in forks of it.

use std::error::Error;
use symphony::json::Object;
use symphony::kv::Save;
use symphony::{process, Errno, Input, KvFile, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let (text, suffixes) = (input.text("prefix")?, input.texts("suffixes")?);
    let sampling = &input.sampling("max_tokens", 16)?;

    let path = format!("parallel_suffixes/{:016x}", process::random_u64()?);
    let mut prefix = open_prefix(&path, text).await?;

    // Every branch makes its pass before the program waits, so a step computes all of them.
    let branches = prefix.fan_out(suffixes.len(), |i, mut branch| {
        let suffix = suffixes[i];
        async move {
            branch.append(suffix)?;
            branch.reply(sampling).await
        }
    });
    for (i, reply) in branches.await?.iter().enumerate() {
        let answer = Object::new().whole("suffix", i as u64).text("text", &reply.text);
        process::send(answer.finish())?;
    }
    KvFile::remove(&path)?;
    Ok(())
}

/// The file of that name, or a new one with the text in it.
async fn open_prefix(path: &str, text: &str) -> symphony::Result<Session> {
    match KvFile::open(path) {
        Err(error) if error.errno == Errno::ENOENT => {}
        known => return Session::of(known?),
    }
    let mut session = Session::new(text)?;
    session.flush().await?;
    session.kv().save(path, Save::REPLACE)?;
    Ok(session)
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
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!(seen.passes_per_wait, [1, 16, 16, 16, 16, 0]); // at last, that there is no more
        assert_eq!(seen.sent.len(), 16);
        assert_eq!((seen.files_left, seen.tickets_left, seen.names.len()), (0, 0, 0));
    }
}
