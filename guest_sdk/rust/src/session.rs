//! A text that grows: a KV file, its tokens, what is said to it and what the model replies.

use crate::combine::try_join_all;
use crate::decode::{Finish, Generation};
use crate::error::{Errno, Error, Result};
use crate::kv::KvFile;
use crate::model;
use crate::plan::Plan;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::Future;

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

/// A text that grows at the end of a KV file: the program says something, the model replies.
///
/// What is said is computed with the reply that follows it, so that saying costs no pass. A fork
/// shares what is computed; forks and their origin count into one [`Usage`].
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// use symphony::{Plan, Session};
///
/// let mut story = Session::new("Once upon a time")?;
/// let plan = Plan::new(12);
/// let opening = story.reply(&plan).await?;
/// // Three ways to go on, computed side by side.
/// let ways = story.fan_out(3, |i, mut branch| {
///     let plan = plan.branch(i);
///     async move {
///         branch.say(&format!("\nWay {}:", i))?;
///         branch.reply(&plan).await
///     }
/// });
/// assert_eq!(ways.await?.len(), 3);
/// assert!(opening.tokens.len() <= 12);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug)]
pub struct Session {
    kv: KvFile,
    /// All of the text; the file has the first `computed` of them.
    tokens: Vec<u32>,
    computed: usize,
    usage: Rc<Cell<Usage>>,
}

impl Session {
    /// A new file, and the beginning of its text.
    pub fn new(text: &str) -> Result<Session> {
        let mut session = Session::at(KvFile::create()?, Vec::new());
        session.say(text)?;
        Ok(session)
    }

    /// Goes on after a file that is there, such as one opened by name.
    pub fn of(kv: KvFile) -> Result<Session> {
        let tokens = kv.tokens(0..kv.len()?)?;
        Ok(Session::at(kv, tokens))
    }

    /// Goes on after a copy of a file, which needs no right but to read it: the pages are shared.
    pub fn copy(kv: &KvFile) -> Result<Session> {
        let copy = KvFile::create()?;
        copy.append(kv, 0..kv.len()?)?;
        Session::of(copy)
    }

    fn at(kv: KvFile, tokens: Vec<u32>) -> Session {
        let computed = tokens.len();
        Session { kv, tokens, computed, usage: Rc::default() }
    }

    /// The file. It may lack the last tokens of the text: see [`settle`](Session::settle).
    pub fn kv(&self) -> &KvFile {
        &self.kv
    }

    /// The tokens of the whole text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What this session, its forks, and the one that it was forked from had computed.
    pub fn usage(&self) -> Usage {
        self.usage.get()
    }

    pub(crate) fn count(&self, prefilled: usize, generated: usize) {
        let mut usage = self.usage.get();
        usage.prefilled += prefilled as u64;
        usage.generated += generated as u64;
        self.usage.set(usage);
    }

    // --- What the program says -------------------------------------------------------------------

    /// Adds to the text.
    pub fn say(&mut self, text: &str) -> Result<()> {
        self.push(&model::tokenize(text)?);
        Ok(())
    }

    /// Adds tokens to the text.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Makes the text these tokens, as when a conversation is rendered anew. What both begin with is
    /// not computed again; returns how many tokens that are.
    pub fn rewrite(&mut self, tokens: &[u32]) -> Result<usize> {
        let pairs = self.tokens[..self.computed].iter().zip(tokens);
        let common = pairs.take_while(|(held, wanted)| held == wanted).count();
        // A pass needs a token to look at.
        let known = common.min(tokens.len().saturating_sub(1));
        self.cut(known)?;
        self.tokens = tokens.to_vec();
        Ok(known)
    }

    fn cut(&mut self, computed: usize) -> Result<()> {
        if computed < self.computed {
            self.kv.truncate(computed as u32)?;
            self.computed = computed;
        }
        Ok(())
    }

    // --- What the model replies --------------------------------------------------------------------

    /// The model goes on. A text without any token is `EINVAL`.
    pub async fn reply(&mut self, plan: &Plan) -> Result<Reply> {
        if !plan.stops().is_empty() {
            return self.stream(plan, |_| Ok(())).await;
        }
        let (max, ends) = (plan.max_tokens, ends(plan)?);
        let pending = self.pending()?.to_vec();
        if max == 0 {
            return Ok(nothing());
        }
        // No code looks at single tokens, so the program is woken as seldom as may be.
        let lot = max.min(LOT) as u32;
        let generate = self.kv.generate(&pending).max(max as u32).stop(&ends).ahead(lot).lot(lot);
        let choices = plan.sampler.begin(generate).rest().await?;
        let tokens: Vec<u32> = choices.iter().map(|choice| choice.token).collect();
        let logprob = choices.iter().map(|choice| f64::from(choice.logprob)).sum();
        let (said, finish) = match tokens.split_last() {
            Some((last, said)) if ends.contains(last) => (said, Finish::Token(*last)),
            _ => (&tokens[..], Finish::Length),
        };
        let text = String::from_utf8_lossy(&model::detokenize(said)?).into_owned();
        self.replied(&tokens, text, finish, logprob)
    }

    /// The model goes on, and `each` gets the text in pieces, as they come.
    pub async fn stream(
        &mut self,
        plan: &Plan,
        mut each: impl FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        let ends = ends(plan)?;
        self.pending()?;
        let mut generation = Generation::new(&self.kv, &self.tokens[self.computed..])?
            .max_tokens(plan.max_tokens)
            .stop_tokens(&ends)
            .sampler(plan.sampler);
        for stop in plan.stops() {
            generation = generation.stop(stop.as_str());
        }
        let mut text = String::new();
        while let Some(piece) = generation.next().await? {
            each(&piece)?;
            text.push_str(&piece);
        }
        let tokens = generation.tokens().to_vec();
        let finish = generation.finish().cloned().unwrap_or(Finish::Length);
        let logprob = generation.logprob();
        drop(generation);
        self.replied(&tokens, text, finish, logprob)
    }

    /// The tokens that the next pass begins with: at least one.
    pub(crate) fn pending(&mut self) -> Result<&[u32]> {
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
        self.count(self.tokens.len() - self.computed, chosen.len());
        let begin = self.tokens.len();
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
        self.say(rest)
    }

    // --- Branches ------------------------------------------------------------------------------------

    /// Computes what was said, up to the last token: branches and scores begin with that one.
    pub async fn settle(&mut self) -> Result<()> {
        self.compute(self.tokens.len().saturating_sub(1)).await
    }

    /// Computes what was said, all of it.
    pub async fn finish(&mut self) -> Result<()> {
        self.compute(self.tokens.len()).await
    }

    async fn compute(&mut self, end: usize) -> Result<()> {
        if self.computed < end {
            self.kv.pred(&self.tokens[self.computed..end]).none().await?;
            self.count(end - self.computed, 0);
            self.computed = end;
        }
        Ok(())
    }

    /// A session of its own with the same text. It shares what is computed, so
    /// [`settle`](Session::settle) first.
    pub fn fork(&self) -> Result<Session> {
        Ok(Session {
            kv: self.kv.fork()?,
            tokens: self.tokens.clone(),
            computed: self.computed,
            usage: self.usage.clone(),
        })
    }

    /// Forks the session `count` times and runs `branch` on each fork, side by side, with its
    /// number; the results in that order. Every step of the server computes all branches.
    pub async fn fan_out<T, F, B>(&mut self, count: usize, mut branch: F) -> Result<Vec<T>>
    where
        F: FnMut(usize, Session) -> B,
        B: Future<Output = Result<T>>,
    {
        self.settle().await?;
        let forks: Result<Vec<Session>> = (0..count).map(|_| self.fork()).collect();
        try_join_all(forks?.into_iter().enumerate().map(|(i, fork)| branch(i, fork))).await
    }

    /// One session of several branches of this one: this text, then what each branch has added, in
    /// their order. Nothing but the branches' last tokens is computed: each branch's part has seen
    /// this text and itself, and what is said next sees all of them.
    pub async fn merge(&self, branches: &mut [Session]) -> Result<Session> {
        try_join_all(branches.iter_mut().map(Session::finish)).await?;
        let (first, others) = match branches.split_first() {
            Some(split) => split,
            None => return self.fork(),
        };
        let mut merged = first.fork()?;
        for branch in others {
            let own = self.tokens.len()..branch.tokens.len();
            merged.kv.append(&branch.kv, own.start as u32..own.end as u32)?;
            merged.push(&branch.tokens[own]);
        }
        merged.computed = merged.tokens.len();
        Ok(merged)
    }
}

/// As many tokens as the server may be ahead of the program.
const LOT: usize = 1024;

fn ends(plan: &Plan) -> Result<Vec<u32>> {
    Ok(if plan.exact { Vec::new() } else { model::info()?.eos })
}

fn nothing() -> Reply {
    Reply { text: String::new(), tokens: Vec::new(), logprob: 0.0, finish: Finish::Length }
}

#[cfg(test)]
mod tests;
