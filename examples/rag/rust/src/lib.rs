//! Answers questions about documents. Which documents stay computed is this program's decision: it
//! keeps those that its own statistics favour, and composes several of them in any order.

mod library;

use library::{Library, Taken};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::rc::Rc;
use symphony::{json, log, model, process, spawn, try_join_all, KvFile, Sampling, Task, Value};

#[symphony::main]
async fn run() -> Result<(), Box<dyn Error>> {
    let input = process::input_json()?;
    let documents = input.get("documents").and_then(Value::as_array).ok_or("no documents")?;
    let number = |key, default| input.get(key).and_then(Value::as_u32).unwrap_or(default);
    let texts = documents.iter().filter_map(Value::as_str);
    let keep_tokens = number("keep_tokens", 8192) as usize;
    let hold_tokens = number("hold_tokens", u32::MAX) as usize;
    let desk = Rc::new(Desk {
        library: RefCell::new(Library::new(texts, keep_tokens, hold_tokens)?),
        automatic: input.get("policy").and_then(Value::as_str) == Some("automatic"),
        sampling: Sampling::new().max_tokens(number("max_tokens", 32) as usize),
    });
    let parallel = number("parallel", 8).max(1) as usize;
    let mut answering: VecDeque<Task<Result<(), String>>> = VecDeque::new();
    while let Some(message) = process::recv_open().await? {
        let question = desk.read(&message)?;
        // What is used cannot make room: a question whose documents have none waits for those before it.
        while answering.len() == parallel || !desk.has_room(&question) {
            match answering.pop_front() {
                Some(first) => first.await?,
                None => break,
            }
        }
        let (desk, taken) = (desk.clone(), desk.take(&question)?);
        answering.push_back(spawn(async move {
            desk.answer(question, taken).await.map_err(|error| error.to_string())
        }));
    }
    for task in answering {
        task.await?;
    }
    let library = desk.library.borrow();
    log!(Info, "{} documents computed, {} found", library.computed(), library.found());
    Ok(())
}

struct Desk {
    library: RefCell<Library>,
    /// Leave it to the server's prefix cache: what the program is compared with.
    automatic: bool,
    sampling: Sampling,
}

struct Question {
    id: u32,
    documents: Vec<usize>,
    tokens: Vec<u32>,
}

impl Desk {
    fn read(&self, message: &[u8]) -> Result<Question, Box<dyn Error>> {
        let message = json::decode(message)?;
        let question = message.get("question").and_then(Value::as_str).ok_or("no question")?;
        let wanted = message.get("documents").and_then(Value::as_array).unwrap_or_default();
        let wanted: Option<Vec<usize>> =
            wanted.iter().map(|n| self.library.borrow().number(n.as_u32()?)).collect();
        Ok(Question {
            id: message.get("id").and_then(Value::as_u32).unwrap_or(0),
            documents: wanted.ok_or("a document that is not there")?,
            tokens: model::tokenize(question)?,
        })
    }

    fn has_room(&self, question: &Question) -> bool {
        self.automatic || self.library.borrow().has_room(&question.documents)
    }

    fn take(&self, question: &Question) -> symphony::Result<Option<Taken>> {
        if self.automatic {
            return Ok(None);
        }
        self.library.borrow_mut().take(&question.documents).map(Some)
    }

    async fn answer(&self, question: Question, taken: Option<Taken>) -> Result<(), Box<dyn Error>> {
        let text = match taken {
            None => self.answer_from_cache(&question.documents, &question.tokens).await?,
            Some(taken) => self.answer_from_files(&question, taken).await?,
        };
        process::send(format!(r#"{{"id": {}, "text": {}}}"#, question.id, json::quote(&text)))?;
        Ok(())
    }

    /// Documents come from files, each computed alone, regardless of what stands before it in the prompt.
    async fn answer_from_files(
        &self,
        question: &Question,
        taken: Taken,
    ) -> Result<String, Box<dyn Error>> {
        // New ones are under way; the server keeps the order of what follows.
        let kv = match taken.files.as_slice() {
            [only] => only.fork()?,
            several => {
                let kv = KvFile::create()?;
                for (file, &document) in several.iter().zip(&question.documents) {
                    kv.append(file, 0..self.library.borrow().tokens(document).len() as u32)?;
                }
                kv
            }
        };
        try_join_all(taken.computing).await?;
        Ok(kv.generate(&question.tokens, &self.sampling).text().await?)
    }

    /// The whole prompt, from where the server's prefix cache knows it.
    async fn answer_from_cache(
        &self,
        wanted: &[usize],
        question: &[u32],
    ) -> Result<String, Box<dyn Error>> {
        let prompt = self.library.borrow().prompt(wanted, question);
        let (kv, known) = match KvFile::matching(&prompt)? {
            Some(kv) => {
                let known = kv.len()? as usize;
                (kv, known)
            }
            None => (KvFile::create()?, 0),
        };
        self.library.borrow_mut().count(wanted, known);
        let text = kv.generate(&prompt[known..], &self.sampling).text().await?;
        kv.offer()?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn ask(policy: &str, keep_tokens: usize, questions: &[&[usize]]) -> Seen {
        let documents: Vec<String> =
            (0..4).map(|i| format!("\"document {} says so\"", i)).collect();
        let input = format!(
            r#"{{"documents": [{}], "keep_tokens": {}, "policy": "{}", "parallel": 1, "max_tokens": 3}}"#,
            documents.join(","),
            keep_tokens,
            policy
        );
        let host =
            questions.iter().enumerate().fold(Host::new().input(input), |host, (id, wanted)| {
                host.message(format!(
                    r#"{{"id": {}, "documents": {:?}, "question": "why"}}"#,
                    id, wanted
                ))
            });
        let (outcome, seen) = host.observe(|| symphony::block_on(run()));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        assert_eq!(seen.sent.len(), questions.len());
        seen
    }

    fn said(seen: &Seen) -> String {
        format!("{:?}", seen.log)
    }

    #[test]
    fn a_document_is_computed_once_while_it_is_kept() {
        let seen = ask("own", 1000, &[&[2], &[2], &[1], &[2], &[1]]);
        assert!(said(&seen).contains("2 documents computed, 3 found"), "{}", said(&seen));
        assert_eq!(seen.sent[0].len(), seen.sent[1].len());
    }

    #[test]
    fn what_is_asked_for_often_stays_and_a_passer_by_does_not_displace_it() {
        // Room for one document: 2 is asked for twice before 1 and 3 come by.
        let seen = ask("own", 32, &[&[2], &[2], &[1], &[3], &[2]]);
        assert!(said(&seen).contains("3 documents computed, 2 found"), "{}", said(&seen));
    }

    #[test]
    fn documents_are_composed_in_any_order() {
        let seen = ask("own", 1000, &[&[0, 1, 2], &[2, 0], &[1, 1]]);
        assert!(said(&seen).contains("3 documents computed, 4 found"), "{}", said(&seen));
    }

    #[test]
    fn the_cache_answers_the_same_about_one_document() {
        let questions: &[&[usize]] = &[&[2], &[1], &[2]];
        assert_eq!(ask("own", 1000, questions).sent, ask("automatic", 0, questions).sent);
    }

    #[test]
    fn a_document_that_is_not_there_is_told_so() {
        let host = Host::new()
            .input(r#"{"documents": ["a"]}"#)
            .message(r#"{"id": 0, "documents": [1], "question": "why"}"#);
        let (outcome, _) = host.observe(|| symphony::block_on(run()));
        assert!(outcome.unwrap().unwrap_err().to_string().contains("not there"));
    }
}
