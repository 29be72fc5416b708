//! A text or a chat that grows: a KV file, its tokens, what is added and what the model replies.

use crate::combine::{as_completed, try_join_all, AsCompleted};
use crate::decode::Finish;
use crate::error::{Errno, Error, Located, Result};
use crate::kv::KvFile;
use crate::model;
use crate::prompt::Turns;
use crate::sampling::Sampling;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::Future;
use core::panic::Location;

/// How many tokens a session and its branches had computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens that the program gave: prompts, and what was scored.
    pub prefilled: u64,
    /// Tokens that the model chose.
    pub generated: u64,
}

/// What the model said.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The text, without what ended it.
    pub text: String,
    /// The text's tokens: what the session holds of the reply.
    pub tokens: Vec<u32>,
    /// The log-probability of all that the model chose, in all.
    pub logprob: f64,
    /// Why it ended.
    pub finish: Finish,
}

/// A text or a chat that grows at the end of a KV file: the program adds to it, the model replies.
///
/// What is added is computed with the reply that follows it, so that adding costs no pass. A fork
/// shares what is computed; forks and their origin count into one [`Usage`].
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// use symphony::{Sampling, Session};
///
/// // Turns go through the model's own chat template. What it has replied is the assistant's turn.
/// let mut chat = Session::chat("You are a careful editor.")?;
/// chat.user("Name a title for a story.")?;
/// let short = Sampling::new().max_tokens(12);
/// let title = chat.reply(&short).await?;
/// // Three ways to go on, computed side by side.
/// let ways = chat.fan_out(3, |i, mut branch| {
///     let drawn = short.clone().temperature(0.8).seed(7).branch(i);
///     async move {
///         branch.user("Begin the story.")?;
///         branch.reply(&drawn).await
///     }
/// });
/// assert_eq!(ways.await?.len(), 3);
/// assert!(title.tokens.len() <= 12);
///
/// let mut text = Session::new("Once upon a time")?; // a text of its own, without a template
/// text.append(" there was")?;
/// text.reply(&short).await?;
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug)]
pub struct Session {
    kv: KvFile,
    /// All of the text; the file has the first `computed` of them.
    tokens: Vec<u32>,
    computed: usize,
    usage: Rc<Cell<Usage>>,
    chat: Option<Box<Chat>>,
}

/// The turns of a chat.
#[derive(Clone, Debug)]
struct Chat {
    turns: Turns,
    /// Where the assistant's part begins in the tokens; `None` where these turns are not rendered.
    answer: Option<usize>,
}

impl Session {
    /// A new file, and the beginning of its text.
    #[track_caller]
    pub fn new(text: &str) -> Result<Session> {
        let mut session = Session::at(KvFile::create()?, Vec::new());
        session.append(text)?;
        Ok(session)
    }

    /// A new file for a chat: its turns go through the model's chat template. `system` is what the
    /// model is told about its part; empty: nothing.
    #[track_caller]
    pub fn chat(system: &str) -> Result<Session> {
        let mut session = Session::at(KvFile::create()?, Vec::new());
        let turns = if system.is_empty() { Turns::new() } else { Turns::new().system(system) };
        session.chat = Some(Box::new(Chat { turns, answer: None }));
        Ok(session)
    }

    /// Goes on after a file that is there, such as one opened by name.
    #[track_caller]
    pub fn of(kv: KvFile) -> Result<Session> {
        let tokens = kv.tokens(0..kv.len()?)?;
        Ok(Session::at(kv, tokens))
    }

    /// Goes on after a copy of a file, which needs no right but to read it: the pages are shared.
    #[track_caller]
    pub fn copy(kv: &KvFile) -> Result<Session> {
        let copy = KvFile::create()?;
        copy.append(kv, 0..kv.len()?)?;
        Session::of(copy)
    }

    fn at(kv: KvFile, tokens: Vec<u32>) -> Session {
        let computed = tokens.len();
        Session { kv, tokens, computed, usage: Rc::default(), chat: None }
    }

    /// The file. It may lack the last tokens of the text: see [`flush`](Session::flush).
    pub fn kv(&self) -> &KvFile {
        &self.kv
    }

    /// The tokens of the whole text; of a chat, as it was rendered last.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What this session, its forks, and the one that it was forked from had computed, with what
    /// replies had computed that were dropped before their end.
    pub fn usage(&self) -> Usage {
        self.usage.get()
    }

    pub(crate) fn count(&self, prefilled: usize, generated: usize) {
        let mut usage = self.usage.get();
        usage.prefilled += prefilled as u64;
        usage.generated += generated as u64;
        self.usage.set(usage);
    }

    // --- What the program adds -------------------------------------------------------------------

    /// Adds to the text; in a chat, to the beginning of the assistant's answer.
    #[track_caller]
    pub fn append(&mut self, text: &str) -> Result<()> {
        self.append_tokens(&model::tokenize(text)?)
    }

    /// Adds tokens to the text.
    #[track_caller]
    pub fn append_tokens(&mut self, tokens: &[u32]) -> Result<()> {
        self.render()?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Adds the user's turn to a chat. A session that has a text of its own is no chat: `EINVAL`.
    #[track_caller]
    pub fn user(&mut self, text: &str) -> Result<()> {
        self.turn("user", text)
    }

    /// Adds a turn of any role to a chat, such as `"tool"`, or `"assistant"` for an example.
    #[track_caller]
    pub fn turn(&mut self, role: &str, text: &str) -> Result<()> {
        self.turns()?.say(role, text);
        Ok(())
    }

    /// The turns of a chat, the model's replies with them, to read or to change: the next reply is to
    /// what they are then.
    #[track_caller]
    pub fn turns(&mut self) -> Result<&mut Turns> {
        if self.chat.is_none() && self.tokens.is_empty() {
            self.chat = Some(Box::new(Chat { turns: Turns::new(), answer: None }));
        }
        let chat = match &mut self.chat {
            Some(chat) => chat,
            None => return Err(Error::new("chat", Errno::EINVAL).with_operand("a plain text")),
        };
        let answer = chat.answer.take().map_or(&[][..], |begin| &self.tokens[begin..]);
        if !answer.is_empty() {
            let text = model::detokenize(answer)?;
            chat.turns.say("assistant", String::from_utf8_lossy(&text));
        }
        Ok(&mut chat.turns)
    }

    /// Renders a chat's turns now, as the next reply would. Returns how many of the tokens are computed
    /// already: only what differs from what was rendered before is computed.
    #[track_caller]
    pub fn render(&mut self) -> Result<usize> {
        let tokens = match &self.chat {
            Some(chat) if chat.answer.is_none() => chat.turns.tokens()?,
            _ => return Ok(self.computed),
        };
        let known = self.replace(&tokens)?;
        if let Some(chat) = &mut self.chat {
            chat.answer = Some(tokens.len());
        }
        Ok(known)
    }

    /// Makes the text these tokens, and the session one of a plain text. What both begin with is not
    /// computed again; returns how many tokens that are.
    #[track_caller]
    pub fn rewrite(&mut self, tokens: &[u32]) -> Result<usize> {
        self.chat = None;
        self.replace(tokens)
    }

    #[track_caller]
    fn replace(&mut self, tokens: &[u32]) -> Result<usize> {
        let pairs = self.tokens[..self.computed].iter().zip(tokens);
        let common = pairs.take_while(|(held, wanted)| held == wanted).count();
        // A pass needs a token to look at.
        let known = common.min(tokens.len().saturating_sub(1));
        self.cut(known)?;
        self.tokens = tokens.to_vec();
        Ok(known)
    }

    #[track_caller]
    fn cut(&mut self, computed: usize) -> Result<()> {
        if computed < self.computed {
            self.kv.truncate(computed as u32)?;
            self.computed = computed;
        }
        Ok(())
    }

    // --- What the model replies --------------------------------------------------------------------

    /// The model goes on. A text without any token is `EINVAL`.
    #[track_caller]
    pub fn reply<'a>(
        &'a mut self,
        sampling: &'a Sampling,
    ) -> impl Future<Output = Result<Reply>> + 'a {
        let location = Location::caller();
        if sampling.stop_texts().is_empty() {
            Located::new(location, self.whole(sampling))
        } else {
            Located::new(location, self.pieces(location, sampling, |_| Ok(())))
        }
    }

    /// The model goes on, and `each` gets the text in pieces, as they come.
    #[track_caller]
    pub fn stream<'a>(
        &'a mut self,
        sampling: &'a Sampling,
        each: impl FnMut(&str) -> Result<()> + 'a,
    ) -> impl Future<Output = Result<Reply>> + 'a {
        self.pieces(Location::caller(), sampling, each)
    }

    /// A reply that no code looks into before its end, so that the program is woken as seldom as may be.
    async fn whole(&mut self, sampling: &Sampling) -> Result<Reply> {
        let ends = sampling.stop_tokens()?;
        let pending = self.pending()?.to_vec();
        let chunk = sampling.max_tokens.map_or(CHUNK, |max| max.clamp(1, CHUNK)) as u32;
        let unfinished = self.unfinished(pending.len());
        let choices = self.kv.stream(&pending, &sampling.chunked(chunk)).rest().await?;
        unfinished.end();
        let tokens: Vec<u32> = choices.iter().map(|choice| choice.token).collect();
        let logprob = choices.iter().map(|choice| f64::from(choice.logprob)).sum();
        let (said, finish) = match tokens.split_last() {
            Some((last, said)) if ends.contains(last) => (said, Finish::Token(*last)),
            _ => (&tokens[..], Finish::Length),
        };
        let text = String::from_utf8_lossy(&model::detokenize(said)?).into_owned();
        self.replied(&tokens, text, finish, logprob)
    }

    fn unfinished(&self, prompt: usize) -> Unfinished<'_> {
        Unfinished { kv: &self.kv, usage: &self.usage, before: self.computed, prompt }
    }

    async fn pieces(
        &mut self,
        location: &'static Location<'static>,
        sampling: &Sampling,
        mut each: impl FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        let at = |error: Error| error.at(location);
        let pending = self.pending().map_err(at)?.to_vec();
        let unfinished = self.unfinished(pending.len());
        let mut generation = self.kv.generate(&pending, sampling);
        let mut text = String::new();
        while let Some(piece) = generation.next().await.map_err(at)? {
            each(&piece)?;
            text.push_str(&piece);
        }
        let tokens = generation.tokens().to_vec();
        let finish = generation.finish().cloned().unwrap_or(Finish::Length);
        let logprob = generation.logprob();
        drop(generation);
        unfinished.end();
        self.replied(&tokens, text, finish, logprob).map_err(at)
    }

    /// The tokens that the next pass begins with: at least one.
    pub(crate) fn pending(&mut self) -> Result<&[u32]> {
        self.render()?;
        if self.tokens.is_empty() {
            return Err(Error::new("generate", Errno::EINVAL));
        }
        self.cut(self.tokens.len() - 1)?;
        Ok(&self.tokens[self.computed..])
    }

    /// The file has all that was pending and chosen, without the last. What ended the text is no part
    /// of it.
    fn replied(
        &mut self,
        chosen: &[u32],
        text: String,
        finish: Finish,
        logprob: f64,
    ) -> Result<Reply> {
        let begin = self.tokens.len();
        if !chosen.is_empty() {
            self.count(begin - self.computed, chosen.len());
        }
        if let Some((last, others)) = chosen.split_last() {
            self.tokens.extend_from_slice(others);
            self.computed = self.tokens.len();
            match &finish {
                Finish::Length => self.tokens.push(*last),
                Finish::Token(_) => {}
                Finish::Text(_) => self.end_with(begin, &text)?,
            }
        }
        let tokens = self.tokens[begin..].to_vec();
        Ok(Reply { text, tokens, logprob, finish })
    }

    /// Cuts the tokens from `begin` on to those of `text`, whose end may be inside of one.
    fn end_with(&mut self, begin: usize, text: &str) -> Result<()> {
        let mut end = self.tokens.len();
        let rest = loop {
            let said = model::detokenize(&self.tokens[begin..end])?;
            if let Some(rest) = text.strip_prefix(&*String::from_utf8_lossy(&said)) {
                break rest;
            }
            end -= 1;
        };
        self.tokens.truncate(end);
        self.cut(end)?;
        self.append(rest)
    }

    // --- Branches ------------------------------------------------------------------------------------

    /// Computes what was added, up to the last token: a reply, a branch or a score begins with that one.
    #[track_caller]
    pub fn prefill(&mut self) -> impl Future<Output = Result<()>> + '_ {
        Located::new(Location::caller(), self.compute(1))
    }

    /// Computes what was added, all of it, so that the file holds the whole text.
    #[track_caller]
    pub fn flush(&mut self) -> impl Future<Output = Result<()>> + '_ {
        Located::new(Location::caller(), self.compute(0))
    }

    async fn compute(&mut self, without: usize) -> Result<()> {
        self.render()?;
        let end = self.tokens.len().saturating_sub(without);
        if self.computed < end {
            let unfinished = self.unfinished(end - self.computed);
            self.kv.prefill(&self.tokens[self.computed..end]).await?;
            unfinished.end();
            self.count(end - self.computed, 0);
            self.computed = end;
        }
        Ok(())
    }

    /// A session of its own with the same text. It shares what is computed, so
    /// [`prefill`](Session::prefill) first.
    #[track_caller]
    pub fn fork(&self) -> Result<Session> {
        Ok(Session {
            kv: self.kv.fork()?,
            tokens: self.tokens.clone(),
            computed: self.computed,
            usage: self.usage.clone(),
            chat: self.chat.clone(),
        })
    }

    /// Forks the session `count` times and runs `branch` on each fork, side by side, with its
    /// number; the results in that order. Every step of the server computes all branches. The first
    /// error stops the others.
    #[track_caller]
    pub fn fan_out<'a, T, F, B>(
        &'a mut self,
        count: usize,
        mut branch: F,
    ) -> impl Future<Output = Result<Vec<T>>> + 'a
    where
        F: FnMut(usize, Session) -> B + 'a,
        B: Future<Output = Result<T>> + 'a,
        T: 'a,
    {
        let location = Location::caller();
        async move {
            let forks = Located::new(location, self.forks(count)).await?;
            try_join_all(forks.into_iter().enumerate().map(|(i, fork)| branch(i, fork))).await
        }
    }

    /// The same, for a program that looks at each result as its branch ends: see [`AsCompleted`].
    /// Dropping what this gives stops the branches that are left; [`usage`](Session::usage) has what
    /// they had computed.
    ///
    /// ```
    /// # symphony::testing::Host::new().run(|| symphony::block_on(async {
    /// use symphony::{Sampling, Session};
    ///
    /// let mut session = Session::new("Is 7 a prime? Answer:")?;
    /// let drawn = Sampling::new().max_tokens(8).temperature(1.0).seed(3);
    /// let mut votes = session
    ///     .fan_out_as_completed(5, |i, mut branch| {
    ///         let drawn = drawn.branch(i);
    ///         async move { Ok(branch.reply(&drawn).await?.text) }
    ///     })
    ///     .await?;
    /// let mut first = Vec::new();
    /// while let Some((_, text)) = votes.next().await {
    ///     first.push(text?);
    ///     if first.len() == 3 {
    ///         break; // a majority, say
    ///     }
    /// }
    /// drop(votes);
    /// assert!(session.usage().generated >= 3);
    /// # symphony::Result::Ok(()) }).unwrap());
    /// ```
    #[track_caller]
    pub fn fan_out_as_completed<'a, T, F, B>(
        &'a mut self,
        count: usize,
        mut branch: F,
    ) -> impl Future<Output = Result<AsCompleted<B>>> + 'a
    where
        F: FnMut(usize, Session) -> B + 'a,
        B: Future<Output = Result<T>> + 'a,
    {
        let location = Location::caller();
        async move {
            let forks = Located::new(location, self.forks(count)).await?;
            Ok(as_completed(forks.into_iter().enumerate().map(|(i, fork)| branch(i, fork))))
        }
    }

    async fn forks(&mut self, count: usize) -> Result<Vec<Session>> {
        self.prefill().await?;
        (0..count).map(|_| self.fork()).collect()
    }

    /// One session of several branches of this one: this text, then what each branch has added, in
    /// their order; a plain text, where they are chats. Nothing but the branches' last tokens is
    /// computed: each branch's part has seen this text and itself, and what is added next sees all of them.
    #[track_caller]
    pub fn merge<'a>(
        &'a self,
        branches: &'a mut [Session],
    ) -> impl Future<Output = Result<Session>> + 'a {
        Located::new(Location::caller(), self.merged(branches))
    }

    async fn merged(&self, branches: &mut [Session]) -> Result<Session> {
        try_join_all(branches.iter_mut().map(Session::flush)).await?;
        let (first, others) = match branches.split_first() {
            Some(split) => split,
            None => return self.fork(),
        };
        let mut merged = first.fork()?;
        merged.chat = None;
        for branch in others {
            let own = self.tokens.len()..branch.tokens.len();
            merged.kv.append(&branch.kv, own.start as u32..own.end as u32)?;
            merged.tokens.extend_from_slice(&branch.tokens[own]);
        }
        merged.computed = merged.tokens.len();
        Ok(merged)
    }
}

/// As many tokens as the server may be ahead of the program.
const CHUNK: usize = 1024;

/// Counts what a file got, and takes it back, where the work that it is for is dropped or fails before
/// its end. It has to outlive that work, which keeps the file busy.
struct Unfinished<'a> {
    kv: &'a KvFile,
    usage: &'a Cell<Usage>,
    /// The file's entries before, and how many were to come of the program.
    before: usize,
    prompt: usize,
}

impl Unfinished<'_> {
    /// The work has ended, and is counted by what came of it.
    fn end(self) {
        core::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        let got = (self.kv.len().unwrap_or(0) as usize).saturating_sub(self.before);
        let mut usage = self.usage.get();
        usage.prefilled += got.min(self.prompt) as u64;
        // The last one that was chosen is not in the file.
        usage.generated += (got + 1).saturating_sub(self.prompt) as u64;
        self.usage.set(usage);
        if got > 0 {
            // The session goes on from the text that it had.
            let _ = self.kv.truncate(self.before as u32);
        }
    }
}

#[cfg(test)]
mod tests;
