//! A file in the editor: its versions, each with the KV of its text.

use symphony::{model, Reply, Result, Sampling, Session, Usage};

pub struct Buffer {
    /// The oldest that `undo` reaches first; never empty. They share what their texts begin with.
    versions: Vec<Version>,
}

struct Version {
    text: String,
    session: Session,
}

impl Buffer {
    pub async fn open(text: &str) -> Result<Buffer> {
        let mut session = Session::new(text)?;
        session.prefill().await?;
        Ok(Buffer { versions: vec![Version { text: text.into(), session }] })
    }

    fn current(&self) -> &Version {
        &self.versions[self.versions.len() - 1]
    }

    pub fn tokens(&self) -> usize {
        self.current().session.tokens().len()
    }

    pub fn versions(&self) -> usize {
        self.versions.len()
    }

    pub fn usage(&self) -> Usage {
        self.current().session.usage()
    }

    /// Takes `delete` characters away at `at`, puts others there, and computes from there on.
    pub async fn edit(
        &mut self,
        at: usize,
        delete: usize,
        insert: &str,
        levels: usize,
    ) -> Result<()> {
        let mut text = self.current().text.clone();
        let (from, to) = (offset(&text, at), offset(&text, at.saturating_add(delete)));
        text.replace_range(from..to, insert);
        // The version before stays as it is: that is what undo goes back to.
        let mut session = self.current().session.fork()?;
        session.rewrite(&model::tokenize(&text)?)?;
        session.prefill().await?;
        self.versions.push(Version { text, session });
        if self.versions.len() > levels + 1 {
            self.versions.remove(0);
        }
        Ok(())
    }

    /// Goes back to the version before, which is still computed.
    pub fn undo(&mut self) -> std::result::Result<(), &'static str> {
        if self.versions.len() == 1 {
            return Err("there is nothing to undo");
        }
        self.versions.pop();
        Ok(())
    }

    /// What may come at a cursor. The file stays as it is; what the completion needed goes.
    pub async fn complete(&self, at: usize, sampling: &Sampling) -> Result<Reply> {
        let Version { text, session } = self.current();
        let mut session = session.fork()?;
        session.rewrite(&model::tokenize(&text[..offset(text, at)])?)?;
        session.reply(sampling).await
    }
}

/// Where a character begins, in bytes; the text's end for those past it.
fn offset(text: &str, character: usize) -> usize {
    text.char_indices().nth(character).map_or(text.len(), |(offset, _)| offset)
}
