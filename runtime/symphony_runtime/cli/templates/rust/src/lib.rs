//! {{name}}: continues the text that it gets.

use std::error::Error;
use symphony::{process, Input, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let mut session = Session::new(input.text("prompt")?)?;
    let sampling = input.sampling("max_tokens", 64)?;
    session.stream(&sampling, |piece| process::send(piece)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::Host;

    #[test]
    fn it_continues_what_it_gets() {
        let program = || symphony::block_on(run(Input::read().unwrap()));
        let (outcome, seen) = Host::new().input("def main(").observe(program);
        outcome.unwrap().unwrap();
        assert!(!seen.sent.is_empty());
    }
}
