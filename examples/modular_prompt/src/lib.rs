//! Prompts from modules: each is computed once, at positions of its own, and any of them make a prompt.

mod schema;

use schema::Schema;
use std::error::Error;
use symphony::json::Object;
use symphony::{model, process, Input, KvFile, Value};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let modules = input.get("modules").and_then(Value::as_map).ok_or("the input needs modules")?;
    let mut schema = Schema::new(input.text_or("schema", "schema")?);
    for (name, text) in modules {
        let (name, text) = name.as_str().zip(text.as_str()).ok_or("modules are texts by name")?;
        schema.add(name, text)?;
    }
    let max_tokens = input.whole("max_tokens", 32, 1..=1024)?;
    while let Some(message) = process::recv_open().await? {
        let question = Input::parse(&message)?;
        process::send(answer(&mut schema, &question, max_tokens).await?)?;
    }
    if !input.flag("keep")? {
        schema.forget()?;
    }
    Ok(())
}

/// Puts a prompt together, and says what the model says to it.
async fn answer(
    schema: &mut Schema,
    question: &Input,
    max_tokens: usize,
) -> Result<String, Box<dyn Error>> {
    let kv = KvFile::create()?;
    let mut rest = schema.assemble(&kv, &question.texts("modules")?, question).await?;
    let text = model::tokenize(question.text_or("text", "")?)?;
    let (mut position, eos) = (schema.end(), model::info()?.eos);
    rest.extend(text, position);
    let (reused, computed) = (kv.len()?, rest.tokens.len());
    if rest.tokens.is_empty() {
        return Err("a prompt needs a text or parameters".into());
    }
    position = position.max(rest.positions[computed - 1] + 1);
    let mut next =
        kv.pred(&rest.tokens).positions(&rest.positions).blocking().argmax().await?.token;
    let mut tokens = Vec::new();
    while !eos.contains(&next) {
        tokens.push(next);
        if tokens.len() == max_tokens {
            break;
        }
        // The file is shorter than its positions reach: they are told with every token.
        next = kv.pred(&[next]).positions(&[position]).blocking().argmax().await?.token;
        position += 1;
    }
    let text = String::from_utf8_lossy(&model::detokenize(&tokens)?).into_owned();
    let told = Object::new().text("text", &text).whole("reused", reused.into());
    Ok(told.whole("computed", computed as u64 + schema.take_computed()).finish())
}

#[cfg(test)]
mod tests;
