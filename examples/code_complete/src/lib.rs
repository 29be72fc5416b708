//! The model's side of an editor: files are kept computed as they are edited, so that a completion
//! computes what is new before the cursor and nothing else.

mod buffer;

use buffer::Buffer;
use std::collections::BTreeMap;
use std::error::Error;
use symphony::json::Object;
use symphony::{process, Input, Sampling};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let mut editor = Editor {
        files: BTreeMap::new(),
        undo_levels: input.whole("undo_levels", 16, 0..=1000)?,
        sampling: input.sampling("max_tokens", 24)?,
    };
    while let Some(message) = process::recv_open().await? {
        let told = match editor.hear(&Input::parse(&message)?).await {
            Ok(told) => told,
            // A mistake of the editor's is told, and the session goes on.
            Err(error) => Object::new().text("error", &error.to_string()),
        };
        process::send(told.finish())?;
    }
    Ok(())
}

struct Editor {
    files: BTreeMap<String, Buffer>,
    undo_levels: usize,
    sampling: Sampling,
}

impl Editor {
    async fn hear(&mut self, said: &Input) -> Result<Object, Box<dyn Error>> {
        let number = |name| said.whole(name, 0, 0..=u32::MAX);
        if let Ok(name) = said.text("open") {
            let buffer = Buffer::open(said.text_or("text", "")?).await?;
            let told = told(name, &buffer, buffer.usage().prefilled as usize);
            self.files.insert(name.into(), buffer);
            return Ok(told);
        }
        if let Ok(name) = said.text("close") {
            // Its versions' files go with it, and their pages are free.
            self.files.remove(name).ok_or("this file is not open")?;
            return Ok(Object::new().text("file", name).whole("open", self.files.len() as u64));
        }
        let named = |what| said.text(what).ok().map(|name| (what, name));
        let found = named("edit").or_else(|| named("undo")).or_else(|| named("complete"));
        let (what, name) = found.ok_or("one of open, edit, undo, complete and close")?;
        let buffer = self.files.get_mut(name).ok_or("this file is not open")?;
        let before = buffer.usage().prefilled;
        let mut reply = None;
        match what {
            "edit" => {
                let (at, delete) = (number("at")?, number("delete")?);
                buffer.edit(at, delete, said.text_or("insert", "")?, self.undo_levels).await?
            }
            "undo" => buffer.undo()?,
            _ => reply = Some(buffer.complete(number("at")?, &self.sampling).await?),
        }
        let told = told(name, buffer, (buffer.usage().prefilled - before) as usize);
        Ok(match reply {
            Some(reply) => told.text("completion", &reply.text),
            None => told,
        })
    }
}

fn told(name: &str, buffer: &Buffer, computed: usize) -> Object {
    let told = Object::new().text("file", name).whole("tokens", buffer.tokens() as u64);
    told.whole("computed", computed as u64).whole("versions", buffer.versions() as u64)
}

#[cfg(test)]
mod tests;
