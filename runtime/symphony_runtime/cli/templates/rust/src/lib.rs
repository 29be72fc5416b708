//! {{name}}: continues the text that it gets.

use symphony::{decode::Generation, model, process, KvFile};

symphony::main!(async run);

async fn run() -> symphony::Result<()> {
    let prompt = model::tokenize(&process::input_text())?;
    if prompt.is_empty() {
        return process::send("Give me a text to continue.");
    }
    let kv = KvFile::create()?;
    let mut generation = Generation::new(&kv, &prompt)?.max_tokens(64);
    while let Some(piece) = generation.next().await? {
        process::send(piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use symphony::testing::Host;

    #[test]
    fn it_continues_what_it_gets() {
        let program = || symphony::block_on(super::run());
        let (outcome, seen) = Host::new().input("def main(").observe(program);
        outcome.unwrap().unwrap();
        assert!(!seen.sent.is_empty());
    }
}
