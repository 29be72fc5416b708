//! One answer: its KV file, the tokens that come, its text.

use crate::calls;
use crate::channels::{Channels, Part};
use crate::conversation;
use crate::drafts::Drafts;
use crate::failure::Failure;
use crate::job::Job;
use crate::logprobs::{Entries, Entry};
use crate::text::Text;
use crate::wire::{Finish, Wire};
use std::collections::BTreeMap;
use std::mem;
use symphony::msgpack::Writer;
use symphony::{process, Errno, Error};

/// Forbids a token; the server wants finite numbers.
const NEVER: f32 = -1e29;
/// Tokens that the server may be ahead of this program, and how many come at once where no client reads
/// each: fewer where what comes behind a text to stop at is computed for nothing.
const AHEAD: u64 = 16;
pub const AHEAD_UNREAD: u64 = 64;
const LOT: u64 = 8;
const LOT_UNREAD: u64 = 32;
/// The same where drafts may come soon: what the server is ahead by is then thrown away.
const LOT_BEFORE_DRAFTS: u64 = 4;
/// After so many passes without a draft the server decodes without them again.
const PASSES_WITHOUT_DRAFT: usize = 4;

/// How passes are made, learned at the first one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decoding {
    /// The server goes on by itself.
    Ahead,
    /// A pass for each token.
    Stepwise,
    /// A pass for each token and a draft of what follows it, which may be empty.
    Drafted,
}

/// What a branch that may make drafts needs for it.
struct Drafting {
    drafts: Drafts,
    /// The draft that the pass under way checks.
    draft: Vec<u32>,
    /// Passes without one in a row.
    without: usize,
    /// When tokens came last, in milliseconds; `None`: none have.
    came: Option<u64>,
}

pub struct Branch {
    /// Which of its prompt's answers it is.
    number: usize,
    kv: i32,
    prompt: usize,
    max: usize,
    pub ticket: i32,
    decoding: Decoding,
    /// Tokens so far, the one that ended it included.
    pub count: usize,
    logprob: f32,
    /// Tokens without the one that ended it; those from `decoded` on are not in `text` yet.
    tokens: Vec<u32>,
    decoded: usize,
    text: Text,
    entries: Vec<Entry>,
    /// What is to be told next.
    ready: String,
    ready_entries: Entries,
    seen: BTreeMap<u32, u32>,
    /// Splits the text, where the job has a format; the parts are to be told next.
    channels: Option<Channels>,
    parts: Vec<Part>,
    /// A bit for each token that has occurred, where that is penalized.
    occurred: Vec<u8>,
    drafting: Option<Drafting>,
    /// Of draws that were given none, so that passes with drafts draw the same.
    seed: Option<u64>,
    finish: Finish,
    told: bool,
}

impl Branch {
    pub fn new(number: usize, kv: i32, prompt: usize, max: usize, job: &Job) -> Branch {
        let stepwise = job.penalizes() || max == 1;
        Branch {
            number,
            kv,
            prompt,
            max,
            ticket: 0,
            decoding: if stepwise { Decoding::Stepwise } else { Decoding::Ahead },
            count: 0,
            logprob: 0.0,
            tokens: Vec::new(),
            decoded: 0,
            text: Text::default(),
            entries: Vec::new(),
            ready: String::new(),
            ready_entries: Entries::default(),
            seen: BTreeMap::new(),
            channels: None,
            parts: Vec::new(),
            occurred: Vec::new(),
            drafting: None,
            seed: None,
            finish: if max == 0 { Finish::Length } else { Finish::Going },
            told: false,
        }
    }

    /// Splits the answer into reasoning, content and calls. `thinks`: the prompt began reasoning.
    pub fn split(&mut self, thinks: bool) {
        self.channels = Some(Channels::new(thinks));
    }

    /// Takes the prompt's tokens as ones that have occurred.
    pub fn note_prompt(&mut self, tokens: &[u32], job: &Job) {
        if job.repeats() {
            self.occurred = vec![0; (job.vocab + 7) / 8];
            tokens.iter().for_each(|token| self.note(*token));
        }
    }

    /// Lets the answer to the prompt make drafts, of which `spare` tokens may be in vain.
    pub fn allow_drafts(&mut self, prompt: &[u32], spare: usize, job: &Job) -> Result<(), Failure> {
        let drawn = matches!(&job.sampling, Some(sampling) if sampling.seed.is_none());
        if drawn {
            self.seed = Some(process::random_u64()?);
        }
        self.drafting = Some(Drafting {
            drafts: Drafts::new(prompt, job.drafts, spare, self.max),
            draft: Vec::new(),
            without: 0,
            came: None,
        });
        Ok(())
    }

    /// Tokens that were drafted, and how many of them were right.
    pub fn drafted(&self) -> (usize, usize) {
        self.drafting.as_ref().map_or((0, 0), |each| (each.drafts.drafted, each.drafts.accepted))
    }

    fn note(&mut self, token: u32) {
        if let Some(byte) = self.occurred.get_mut(token as usize / 8) {
            *byte |= 1 << (token % 8);
        }
    }

    pub fn going(&self) -> bool {
        self.finish == Finish::Going
    }

    /// Begins with the prompt's tokens that are not in the file.
    pub fn start(&mut self, tokens: &[u32], job: &Job) -> Result<(), Failure> {
        if self.decoding == Decoding::Ahead {
            match calls::generate(self.kv, tokens, &self.adapted(job)) {
                Ok(ticket) => {
                    self.ticket = ticket;
                    return Ok(());
                }
                Err(error) if error.errno == Errno::ENOSYS => self.decoding = Decoding::Stepwise,
                Err(error) => return Err(error.into()),
            }
        }
        let drafted = self.drafting.as_ref().filter(|_| self.decoding == Decoding::Drafted);
        let options = self.adapted(job);
        self.ticket = match drafted {
            Some(drafting) if !drafting.draft.is_empty() => {
                calls::pred(self.kv, &[tokens, &drafting.draft].concat(), &options)?
            }
            _ => calls::pred(self.kv, tokens, &options)?,
        };
        Ok(())
    }

    /// Takes the tokens that are ready, and goes on; `false`: none are.
    pub fn take(&mut self, job: &Job, room: &mut [u8]) -> Result<bool, Failure> {
        match calls::take(self.ticket, room) {
            Ok(None) => Ok(false),
            Ok(Some(length)) => self.advance(length, job, room).map(|()| true),
            Err(error) => self.give_up_drafts(error, job).map(|()| true),
        }
    }

    /// The same, once there are some.
    pub fn claim(&mut self, job: &Job, room: &mut [u8]) -> Result<(), Failure> {
        match calls::claim(self.ticket, room) {
            Ok(length) => self.advance(length, job, room),
            Err(error) => self.give_up_drafts(error, job),
        }
    }

    fn advance(&mut self, length: usize, job: &Job, room: &[u8]) -> Result<(), Failure> {
        if self.decoding != Decoding::Ahead {
            self.ticket = 0;
        }
        let records = room[..length].chunks_exact(job.record_bytes());
        if self.decoding == Decoding::Drafted {
            self.check_draft(records, job)?;
        } else {
            let before = self.count;
            records.for_each(|record| self.add_while_going(record, job));
            self.count_time(self.count - before, None);
        }
        // The next pass is under way before this one's text is looked at.
        self.proceed(job)?;
        if job.watches() {
            self.look(job)?;
        }
        if !self.going() {
            self.close(job)?;
        }
        Ok(())
    }

    fn add_while_going(&mut self, record: &[u8], job: &Job) {
        if self.going() {
            self.add(record, job);
        }
    }

    /// Takes the tokens as far as the draft was right, with the one behind; the file forgets the rest.
    fn check_draft<'a>(
        &mut self,
        records: impl Iterator<Item = &'a [u8]>,
        job: &Job,
    ) -> Result<(), Failure> {
        let draft = self.drafting.as_mut().map_or(Vec::new(), |each| mem::take(&mut each.draft));
        let mut right = 0;
        for (place, record) in records.enumerate() {
            self.add_while_going(record, job);
            if !self.going() || draft.get(place) != Some(&pair(record).0) {
                break;
            }
            right += 1;
        }
        self.count_time(right + 1, Some((draft.len(), right)));
        if right < draft.len() {
            calls::kv_truncate(self.kv, self.entries())?;
        }
        Ok(())
    }

    /// Accounts for tokens that came now; `checked`: tokens of their draft, and those that were right.
    fn count_time(&mut self, tokens: usize, checked: Option<(usize, usize)>) {
        let drafting = match &mut self.drafting {
            Some(drafting) => drafting,
            None => return,
        };
        let now = process::clock_ms();
        // The prompt's time is in that of the first tokens.
        let ms = drafting.came.map(|came| now - came);
        drafting.came = Some(now);
        match checked {
            Some((drafted, right)) => {
                drafting.drafts.count_pass(ms.unwrap_or(0), drafted, right);
            }
            None => ms.iter().for_each(|ms| drafting.drafts.count_plain(*ms, tokens)),
        }
    }

    /// One more token.
    fn add(&mut self, record: &[u8], job: &Job) {
        let (token, logprob) = pair(record);
        self.count += 1;
        self.logprob += logprob;
        if job.ends.contains(&token) && self.count > job.min {
            self.finish = Finish::Stop;
            return;
        }
        self.tokens.push(token);
        if let Some(drafting) = &mut self.drafting {
            drafting.drafts.push(token);
        }
        if job.penalizes() {
            *self.seen.entry(token).or_insert(0) += 1;
            self.note(token);
        }
        if job.logprobs.is_some() {
            let top = record[8..].chunks_exact(8).map(pair).collect();
            self.entries.push(Entry { start: usize::MAX, token, logprob: Some(logprob), top });
        }
        if self.count >= self.max {
            self.finish = Finish::Length;
        }
    }

    /// Starts the next pass where one is needed.
    fn proceed(&mut self, job: &Job) -> Result<(), Failure> {
        let spent = job.budget == Some(self.count);
        let ended = match self.decoding {
            Decoding::Stepwise | Decoding::Drafted => true,
            // The part without an end is over: from here on the answer may end.
            Decoding::Ahead => spent || self.count == self.minimum(job) && self.count > 0,
        };
        if !self.going() || !self.choose_draft(spent, job) && !ended {
            return Ok(());
        }
        self.cancel();
        if !ended {
            calls::kv_truncate(self.kv, self.entries())?;
        }
        let from = self.tokens.len() - 1;
        if spent {
            self.end_reasoning(job)?;
        }
        if self.going() {
            let next = self.tokens[from..].to_vec();
            self.start(&next, job)?;
        }
        Ok(())
    }

    /// Chooses the draft that the next pass checks, which may be empty; `true`: there is one.
    fn choose_draft(&mut self, spent: bool, job: &Job) -> bool {
        let room = if spent { 0 } else { self.tokens_left(job) - 1 };
        let forbids = self.count < self.minimum(job);
        let drafting = match &mut self.drafting {
            Some(drafting) if !forbids => drafting,
            _ => return false,
        };
        drafting.draft = drafting.drafts.draft(room);
        let found = !drafting.draft.is_empty();
        drafting.without = if found { 0 } else { drafting.without + 1 };
        if found {
            if self.decoding == Decoding::Ahead {
                drafting.drafts.count_wasted(AHEAD as usize);
            }
            self.decoding = Decoding::Drafted;
        } else if self.decoding == Decoding::Drafted && drafting.without > PASSES_WITHOUT_DRAFT {
            drafting.drafts.judge();
            self.decoding = Decoding::Ahead;
        }
        found
    }

    /// Goes on without drafts where a pass with one has failed: it took more than a token takes.
    fn give_up_drafts(&mut self, error: Error, job: &Job) -> Result<(), Failure> {
        let drafted = self.drafting.take().filter(|each| !each.draft.is_empty());
        let last = match (drafted, self.tokens.last()) {
            (Some(_), Some(last)) if self.decoding == Decoding::Drafted => *last,
            _ => return Err(error.into()),
        };
        self.cancel();
        self.decoding = Decoding::Ahead;
        calls::kv_truncate(self.kv, self.entries())?;
        self.start(&[last], job)
    }

    /// Ends the reasoning, if it has not ended by itself: its tokens are used up.
    fn end_reasoning(&mut self, job: &Job) -> Result<(), Failure> {
        self.look(job)?;
        if !self.going() || !self.channels.as_ref().map_or(false, Channels::thinks) {
            return Ok(());
        }
        for token in conversation::reasoning_end(job)? {
            self.count += 1;
            self.tokens.push(token);
            if let Some(drafting) = &mut self.drafting {
                drafting.drafts.push(token);
            }
            if job.logprobs.is_some() {
                let (start, top) = (usize::MAX, Vec::new());
                self.entries.push(Entry { start, token, logprob: Some(0.0), top });
            }
        }
        if self.count >= self.max {
            self.finish = Finish::Length;
        }
        Ok(())
    }

    /// Tokens before which the answer must not end.
    fn minimum(&self, job: &Job) -> usize {
        if job.ends.is_empty() {
            0
        } else {
            job.min.min(self.max)
        }
    }

    fn cancel(&mut self) {
        if self.ticket != 0 {
            calls::cancel(self.ticket);
            self.ticket = 0;
        }
    }

    /// Adds the new tokens' text, and looks for one to stop at.
    fn look(&mut self, job: &Job) -> Result<(), Failure> {
        self.decode(job)?;
        let stops: &[Vec<u8>] = if self.count > job.min { &job.stop } else { &[] };
        if self.text.release(stops, &mut self.ready) {
            self.finish = Finish::Stop;
            self.entries.retain(|entry| entry.start < self.text.released);
        }
        self.split_ready(job, false);
        self.encode_entries()
    }

    /// Gives the tokens that came last their text.
    fn decode(&mut self, job: &Job) -> Result<(), Failure> {
        if job.logprobs.is_none() {
            conversation::spell(&self.tokens[self.decoded..], job, self.text.tail())?;
        } else {
            let fresh = self.entries.len() - (self.tokens.len() - self.decoded);
            for entry in &mut self.entries[fresh..] {
                entry.start = self.text.end();
                conversation::spell(&[entry.token], job, self.text.tail())?;
            }
        }
        self.decoded = self.tokens.len();
        Ok(())
    }

    /// Makes the entries ready whose text is released.
    fn encode_entries(&mut self) -> Result<(), Failure> {
        let released = self.text.released;
        let going = self.finish == Finish::Going;
        let ready = self.entries.iter().take_while(|e| !going || e.start < released).count();
        for entry in self.entries.drain(..ready) {
            self.ready_entries.push(&entry)?;
        }
        Ok(())
    }

    /// The end: no pass is under way any more, and all text is ready.
    pub fn close(&mut self, job: &Job) -> Result<(), Failure> {
        self.cancel();
        if self.decoded < self.tokens.len() {
            self.decode(job)?;
        }
        self.text.finish(&mut self.ready);
        self.split_ready(job, true);
        self.encode_entries()
    }

    /// Splits the text that is ready into parts.
    fn split_ready(&mut self, job: &Job, ended: bool) {
        let (channels, format) = match (&mut self.channels, &job.format) {
            (Some(channels), Some(format)) => (channels, format),
            _ => return,
        };
        channels.feed(&self.ready, format, &mut self.parts);
        self.ready.clear();
        if channels.over && self.finish == Finish::Going {
            self.finish = Finish::Stop;
        }
        if ended {
            channels.finish(format, &mut self.parts);
            if channels.called() && self.finish == Finish::Stop {
                self.finish = Finish::ToolCalls;
            }
        }
    }

    /// Says something before the answer.
    pub fn say(&mut self, text: &str) {
        self.ready.push_str(text);
    }

    /// Tells the prompt's entries before the answer's.
    pub fn tell_entries(&mut self, entries: &[Entry], count: usize) -> Result<(), Failure> {
        for entry in entries {
            let top = entry.top.iter().take(count).copied().collect();
            self.ready_entries.push(&Entry { top, ..*entry })?;
        }
        Ok(())
    }

    /// Whether there is something to tell.
    pub fn speaks(&self) -> bool {
        !self.told && (!self.going() || !self.ready.is_empty() || !self.parts.is_empty())
    }

    /// How likely the answer is, a token on average.
    pub fn score(&self) -> f32 {
        self.logprob / self.count.max(1) as f32
    }

    /// Tells what is ready.
    pub fn tell(&mut self, choice: u16, job: &Job, wire: &mut Wire) {
        if self.channels.is_some() {
            self.tell_parts(choice, wire);
        }
        if let Some(stop) = self.text.stopped.filter(|_| job.tells) {
            wire.part(b's', choice, None, &String::from_utf8_lossy(&job.stop[stop]));
        }
        if job.ids {
            wire.tokens(choice, &self.tokens);
        }
        if job.logprobs.is_some() {
            let entries = core::mem::take(&mut self.ready_entries).into_bytes();
            wire.piece_with(choice, self.finish, &self.ready, &entries);
        } else if self.channels.is_none() || !self.going() || !self.ready.is_empty() {
            wire.piece(choice, self.finish, &self.ready);
        }
        self.ready.clear();
        self.told = !self.going();
    }

    /// Tells what is split; content at the end stays ready.
    fn tell_parts(&mut self, choice: u16, wire: &mut Wire) {
        if let Some(Part::Content(_)) = self.parts.last() {
            if let Some(Part::Content(text)) = self.parts.pop() {
                self.ready = text;
            }
        }
        for part in self.parts.drain(..) {
            match part {
                Part::Content(text) => wire.piece(choice, Finish::Going, &text),
                Part::Reasoning(text) => wire.part(b'r', choice, None, &text),
                Part::Call(call, name) => wire.part(b'c', choice, Some(call), &name),
                Part::Arguments(call, text) => wire.part(b'a', choice, Some(call), &text),
            }
        }
    }

    /// Tokens of the reasoning, with what opens and ends it.
    pub fn reasoning(&self, job: &Job) -> Result<usize, Failure> {
        let bytes = match self.channels.as_ref().map(Channels::reasoned) {
            None | Some(Some(0)) => return Ok(0),
            Some(None) => return Ok(self.tokens.len()),
            Some(Some(bytes)) => bytes,
        };
        // The text only grows with the tokens: the first so many that have all of it.
        let (mut least, mut most) = (1, self.tokens.len());
        while least < most {
            let middle = (least + most) / 2;
            let mut text = Vec::new();
            conversation::spell(&self.tokens[..middle], job, &mut text)?;
            if String::from_utf8_lossy(&text).len() < bytes {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        Ok(least)
    }

    /// The file of the prompt and the answer.
    pub fn file(&self) -> i32 {
        self.kv
    }

    /// Tokens that the file holds at least.
    pub fn entries(&self) -> usize {
        self.prompt + self.count.saturating_sub(1)
    }

    fn adapted(&self, job: &Job) -> Vec<u8> {
        calls::adapted(self.options(job), &job.adapter)
    }

    fn options(&self, job: &Job) -> Vec<u8> {
        let ahead = self.decoding == Decoding::Ahead;
        let drafts = self.drafting.as_ref().map_or(false, |each| !each.draft.is_empty());
        let minimum = self.minimum(job);
        let forbids = self.count < minimum;
        let bias = self.bias(job, forbids);
        let mut out = Writer::new();
        let plain = job.sampling.is_none();
        let shares = self.count == 0; // the prompt, with requests that begin alike
        let logprobs = job.logprobs.filter(|count| *count > 0);
        let count = usize::from(!plain)
            + usize::from(!bias.is_empty())
            + usize::from(logprobs.is_some())
            + usize::from(job.constraint > 0)
            + usize::from(job.repeats())
            + usize::from(shares)
            + usize::from(drafts)
            + if ahead { 4 } else { 0 };
        if count == 0 {
            return Vec::new();
        }
        out.map(count);
        if !plain {
            job.write_get(self.number, self.seed, &mut out);
        }
        if !bias.is_empty() {
            out.str("bias").map(bias.len());
            for (token, bias) in &bias {
                out.uint(u64::from(*token)).f32(*bias);
            }
        }
        if job.repeats() {
            out.str("repetition").map(2).str("mask").bin(&self.occurred);
            out.str("penalty").f32(job.repetition);
        }
        if let Some(count) = logprobs {
            out.str("logprobs").uint(count as u64);
        }
        if job.constraint > 0 {
            out.str("constraint").int(i64::from(job.constraint));
        }
        if shares {
            out.str("share").bool(true);
        }
        if drafts {
            out.str("at").str("all");
        }
        if ahead {
            let ends: &[u32] = if forbids { &[] } else { &job.ends };
            let near = self.drafting.as_ref().map_or(false, |each| each.drafts.is_near());
            let (ahead, lot) = match (job.stream, job.stop.is_empty()) {
                (true, _) => (AHEAD, 1),
                _ if near => (AHEAD, LOT_BEFORE_DRAFTS),
                (false, false) => (AHEAD, LOT),
                (false, true) => (AHEAD_UNREAD, LOT_UNREAD),
            };
            out.str("max").uint(self.tokens_left(job) as u64).str("ahead").uint(ahead).str("lot").uint(lot);
            out.str("stop").array(ends.len());
            ends.iter().fold(&mut out, |out, token| out.uint(u64::from(*token)));
        }
        out.into_bytes()
    }

    /// Tokens that may come before the options change, or the answer ends.
    fn tokens_left(&self, job: &Job) -> usize {
        let minimum = self.minimum(job);
        let most = if self.count < minimum { minimum } else { self.max - self.count };
        match job.budget.and_then(|budget| budget.checked_sub(self.count)) {
            Some(left) if left > 0 => most.min(left),
            _ => most,
        }
    }

    /// What is added to the logits of the next token.
    fn bias(&self, job: &Job, forbids: bool) -> Vec<(u32, f32)> {
        if !forbids && (self.seen.is_empty() || !job.biases_seen()) {
            return job.bias.clone();
        }
        let mut sum: BTreeMap<u32, f32> = job.bias.iter().copied().collect();
        for (token, times) in &self.seen {
            *sum.entry(*token).or_insert(0.0) -= job.presence + job.frequency * *times as f32;
        }
        if forbids {
            job.ends.iter().for_each(|token| drop(sum.insert(*token, NEVER)));
        }
        sum.into_iter().collect()
    }
}

/// A token and its log-probability.
fn pair(bytes: &[u8]) -> (u32, f32) {
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    (u32::from_le_bytes(word(0)), f32::from_le_bytes(word(4)))
}
