//! A conversation that keeps its KV between messages: each answer computes only what is new.

use std::error::Error;
use symphony::{log, model, process, Input, Sampling, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let end_of_answer = input.text_or("end", "")?;
    let mut chat = Chat::new(&input)?;
    while let Some(message) = process::recv_open().await? {
        chat.answer(&String::from_utf8_lossy(&message)).await?;
        process::send(end_of_answer)?;
    }
    Ok(())
}

struct Chat {
    session: Session,
    sampling: Sampling,
    /// Tokens that a conversation may have, so that there is room for an answer.
    room: usize,
}

impl Chat {
    fn new(input: &Input) -> Result<Chat, Box<dyn Error>> {
        let context = input.whole("max_context", u32::MAX, 1..=u32::MAX)?;
        let context = context.min(model::info()?.max_context as usize);
        let longest = input.whole("max_tokens", 128, 1..=131_072)?;
        Ok(Chat {
            session: Session::chat(input.text_or("system", "")?)?,
            sampling: input.sampling("max_tokens", 128)?,
            room: context.saturating_sub(longest),
        })
    }

    async fn answer(&mut self, question: &str) -> Result<(), Box<dyn Error>> {
        self.session.user(question)?;
        let known = self.forget_until_it_fits()?;
        log!(Info, "{} of {} tokens are in the file", known, self.session.tokens().len());
        self.session.stream(&self.sampling, |piece| process::send(piece)).await?;
        Ok(())
    }

    /// Drops the oldest exchanges until there is room for an answer; how many tokens are computed already.
    fn forget_until_it_fits(&mut self) -> Result<usize, Box<dyn Error>> {
        loop {
            let known = self.session.render()?;
            if self.session.tokens().len() <= self.room {
                return Ok(known);
            }
            let messages = &mut self.session.turns()?.messages;
            let oldest = messages.iter().position(|message| message.role == "user");
            match oldest.filter(|oldest| oldest + 2 < messages.len()) {
                Some(oldest) => drop(messages.drain(oldest..oldest + 2)),
                None => return Err("the message is longer than the model's context".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn talk(input: &str, messages: &[&str]) -> Seen {
        let host = messages.iter().fold(Host::new().input(input), |h, m| h.message(*m));
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        seen
    }

    #[test]
    fn it_answers_each_message_and_ends_when_the_user_closes() {
        let seen = talk(r#"{"max_tokens": 5}"#, &["hi", "there"]);
        assert_eq!(seen.sent.iter().filter(|message| message.is_empty()).count(), 2);
        assert_eq!(seen.passes_per_wait.iter().sum::<usize>(), 2 * 5);
    }

    #[test]
    fn what_was_computed_is_not_computed_again() {
        // The answer is ASCII, so its tokens are the same when the template renders them again.
        let answer = |history: &[u32]| {
            let mut logits = vec![0.0; 257];
            logits[if history.ends_with(b"k".map(u32::from).as_ref()) { 256 } else { 107 }] = 9.0;
            logits
        };
        let host = Host::new().input("").model(answer).message("hi").message("there");
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!(seen.text(), "kk");
        let first = "<user>hi\n<assistant>".len();
        let second = first + "k\n<user>there\n<assistant>".len();
        let expected = |known, all| format!("{} of {} tokens are in the file", known, all);
        assert_eq!(seen.log[0].1, expected(0, first));
        assert_eq!(seen.log[1].1, expected(first + 1, second));
    }

    #[test]
    fn old_exchanges_are_forgotten_before_the_context_ends() {
        let messages: Vec<String> = (0..20).map(|i| format!("message number {}", i)).collect();
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        let seen = talk(r#"{"max_tokens": 8, "max_context": 120, "system": "be kind"}"#, &messages);
        assert_eq!(seen.sent.iter().filter(|message| message.is_empty()).count(), 20);
        let sizes = seen.log.iter().map(|(_, line)| line.split(' ').nth(2).unwrap());
        let sizes: Vec<usize> = sizes.map(|size| size.parse().unwrap()).collect();
        assert!(sizes.iter().all(|size| *size <= 112) && sizes[19] > 60, "{:?}", sizes);
    }

    #[test]
    fn a_message_that_never_fits_ends_the_conversation_with_words() {
        let host =
            Host::new().input(r#"{"max_context": 30, "max_tokens": 20}"#).message("x".repeat(40));
        let (outcome, _) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        assert!(outcome.unwrap().unwrap_err().to_string().contains("longer than"));
    }
}
