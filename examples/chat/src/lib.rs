//! A conversation that keeps its KV between messages: each answer computes only what is new.

use std::error::Error;
use symphony::decode::{Generation, Sampler};
use symphony::model::{self, Message};
use symphony::{json, log, process, KvFile, Value};

symphony::main!(async run);

async fn run() -> Result<(), Box<dyn Error>> {
    let input = read_input()?;
    let end_of_answer = input.get("end").and_then(Value::as_str).unwrap_or("");
    let mut chat = Chat::new(&input)?;
    while let Some(message) = process::recv_open().await? {
        chat.answer(String::from_utf8_lossy(&message).into_owned()).await?;
        process::send(end_of_answer)?;
    }
    Ok(())
}

/// The input's map, or an empty one: everything in it may be left out.
fn read_input() -> Result<Value, Box<dyn Error>> {
    let bytes = process::input();
    Ok(if bytes.first() == Some(&b'{') { json::decode(&bytes)? } else { Value::Nil })
}

struct Chat {
    messages: Vec<Message>,
    kv: KvFile,
    /// The tokens in the file.
    held: Vec<u32>,
    max_tokens: usize,
    max_context: usize,
    sampler: Sampler,
}

impl Chat {
    fn new(input: &Value) -> symphony::Result<Chat> {
        let system = input.get("system").and_then(Value::as_str);
        let temperature = input.get("temperature").and_then(Value::as_f64).unwrap_or(0.0);
        let limit = input.get("max_context").and_then(Value::as_u32).unwrap_or(u32::MAX);
        Ok(Chat {
            messages: system.map(|text| Message::new("system", text)).into_iter().collect(),
            kv: KvFile::create()?,
            held: Vec::new(),
            max_tokens: input.get("max_tokens").and_then(Value::as_u32).unwrap_or(128) as usize,
            max_context: model::info()?.max_context.min(limit) as usize,
            sampler: Sampler::new(temperature as f32, input.get("seed").and_then(Value::as_u64)),
        })
    }

    async fn answer(&mut self, question: String) -> Result<(), Box<dyn Error>> {
        self.messages.push(Message::new("user", question));
        let conversation = self.fitting_conversation()?;
        let known = self.roll_back_to(&conversation)?;
        log!(Info, "{} of {} tokens are in the file", known, conversation.len());

        let mut generation = Generation::new(&self.kv, &conversation[known..])?
            .max_tokens(self.max_tokens)
            .sampler(self.sampler);
        let mut answer = String::new();
        while let Some(piece) = generation.next().await? {
            process::send(&piece)?;
            answer.push_str(&piece);
        }
        // The token chosen last was never computed, so it is not in the file.
        let chosen = generation.tokens();
        self.held = conversation;
        self.held.extend(&chosen[..chosen.len().saturating_sub(1)]);
        self.messages.push(Message::new("assistant", answer));
        Ok(())
    }

    /// The conversation's tokens; its oldest exchanges are forgotten until an answer fits.
    fn fitting_conversation(&mut self) -> Result<Vec<u32>, Box<dyn Error>> {
        loop {
            let tokens = model::chat(&self.messages)?;
            if tokens.len() + self.max_tokens <= self.max_context {
                return Ok(tokens);
            }
            let oldest = self.messages.iter().position(|message| message.role == "user");
            match oldest.filter(|oldest| oldest + 2 < self.messages.len()) {
                Some(oldest) => drop(self.messages.drain(oldest..oldest + 2)),
                None => return Err("the message is longer than the model's context".into()),
            }
        }
    }

    /// Cuts the file to what it has in common with the conversation, less at least one token: a pass
    /// needs one to look at.
    fn roll_back_to(&mut self, conversation: &[u32]) -> symphony::Result<usize> {
        let pairs = self.held.iter().zip(conversation);
        let common = pairs.take_while(|(held, wanted)| held == wanted).count();
        let known = common.min(conversation.len() - 1);
        if known < self.held.len() {
            self.kv.truncate(known as u32)?;
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn talk(input: &str, messages: &[&str]) -> Seen {
        let host = messages.iter().fold(Host::new().input(input), |h, m| h.message(*m));
        let (outcome, seen) = host.observe(|| symphony::block_on(run()));
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
        let (outcome, seen) = host.observe(|| symphony::block_on(run()));
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
        let (outcome, _) = host.observe(|| symphony::block_on(run()));
        assert!(outcome.unwrap().unwrap_err().to_string().contains("longer than"));
    }
}
