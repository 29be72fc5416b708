//! {{name}}: a conversation that keeps its KV cache between the messages.

use std::error::Error;
use symphony::{process, Input, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let mut chat = Session::chat(input.text_or("system", "Answer in one sentence.")?)?;
    let sampling = input.sampling("max_tokens", 128)?;
    while let Some(message) = process::recv_open().await? {
        chat.user(&String::from_utf8_lossy(&message))?;
        chat.stream(&sampling, |piece| process::send(piece)).await?;
        process::send("\n")?; // the end of an answer
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::Host;

    #[test]
    fn it_answers_each_message() {
        let host = Host::new().input(r#"{"max_tokens": 5}"#).message("hi").message("there");
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!(seen.sent.iter().filter(|message| *message == b"\n").count(), 2);
        assert_eq!(seen.files_left, 0);
    }
}
