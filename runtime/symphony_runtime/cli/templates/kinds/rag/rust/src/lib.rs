//! {{name}}: answers a question from the document that fits it best, which is computed once.

use std::error::Error;
use symphony::json::Object;
use symphony::kv::Save;
use symphony::{model, process, Errno, Input, KvFile, Session};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let (question, documents) = (input.text("question")?, input.texts("documents")?);
    let best = best(question, &documents).ok_or("there are no documents")?;
    let (file, known) = document(documents[best]).await?;
    let mut text = Session::of(file)?;
    text.append(&format!("\nQuestion: {}\nAnswer:", question))?;
    let answer = text.reply(&input.sampling("max_tokens", 64)?).await?.text;
    let told = Object::new().text("answer", answer.trim()).whole("document", best as u64);
    Ok(process::send(told.flag("known", known).finish())?)
}

/// The number of the document that shares most words with the question.
fn best(question: &str, documents: &[&str]) -> Option<usize> {
    let words = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        parts.map(str::to_lowercase).collect()
    };
    let asked = words(question);
    let score = |text: &str| words(text).iter().filter(|word| asked.contains(word)).count();
    // Of equal ones the first.
    (0..documents.len()).rev().max_by_key(|number| score(documents[*number]))
}

/// The KV file of a document, and whether an earlier run has computed it.
async fn document(text: &str) -> symphony::Result<(KvFile, bool)> {
    let path = format!("{{name}}/{:016x}", hash(text));
    match KvFile::open(&path) {
        Ok(file) => return Ok((file, true)),
        Err(error) if error.errno != Errno::ENOENT => return Err(error),
        Err(_) => {}
    }
    let file = KvFile::create()?;
    file.prefill(&model::tokenize(text)?).await?;
    file.save(&path, Save::REPLACE)?;
    Ok((file, false))
}

/// FNV-1a: names are short, texts are long.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::Host;

    const INPUT: &str = r#"{"question": "how long is the Lys?", "max_tokens": 4,
        "documents": ["Ghent is a city", "The Lys is long"]}"#;

    #[test]
    fn it_answers_from_the_document_that_fits() {
        let program = || symphony::block_on(run(Input::read().unwrap()));
        let (outcome, seen) = Host::new().input(INPUT).observe(program);
        outcome.unwrap().unwrap();
        assert!(seen.text().contains(r#""document":1"#), "{}", seen.text());
        assert_eq!(seen.names.len(), 1);
    }

    #[test]
    fn of_equal_documents_it_takes_the_first() {
        assert_eq!(best("what?", &["a", "b"]), Some(0));
        assert_eq!(best("what?", &[]), None);
    }
}
