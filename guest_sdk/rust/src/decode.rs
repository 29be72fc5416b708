//! Decoding: what nearly every program wants between forward passes and text.

use crate::constraint::Constraint;
use crate::error::{Errno, Error, Result};
use crate::executor::Ticket;
use crate::kv::KvFile;
use crate::model;
use crate::pred::{Choice, Pred, Sampling};
use crate::stream::{Generate, Stream};
use alloc::string::String;
use alloc::vec::Vec;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// The best one.
    Greedy,
    /// One drawn at random.
    Random(Sampling),
}

impl Sampler {
    /// Greedy at temperature 0, else random.
    pub fn new(temperature: f32, seed: Option<u64>) -> Sampler {
        if temperature > 0.0 {
            Sampler::Random(Sampling { temperature, seed, ..Sampling::default() })
        } else {
            Sampler::Greedy
        }
    }

    /// Starts the pass, for this choice.
    pub fn choose(&self, pred: Pred<'_>) -> Ticket<Choice> {
        match self {
            Sampler::Greedy => pred.argmax(),
            Sampler::Random(sampling) => pred.sample(sampling),
        }
    }

    /// Starts the generation, with this choice in every step.
    pub fn begin(&self, generate: Generate<'_>) -> Stream {
        match self {
            Sampler::Greedy => generate.argmax(),
            Sampler::Random(sampling) => generate.sample(sampling),
        }
    }
}

/// Bytes that come in pieces, as text that never breaks a character.
///
/// ```
/// use symphony::decode::Utf8;
///
/// let mut text = Utf8::new();
/// assert_eq!(text.push(b"caf\xc3"), "caf");
/// assert_eq!(text.push(b"\xa9!"), "\u{e9}!");
/// assert_eq!(text.push(b"\xff\xe2\x82"), "\u{fffd}");
/// assert_eq!(text.finish(), "\u{fffd}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Utf8 {
    pending: Vec<u8>,
}

impl Utf8 {
    /// Nothing came yet.
    pub fn new() -> Utf8 {
        Utf8::default()
    }

    /// The characters that are complete now; bytes that never will be become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            let (valid, wrong) = match core::str::from_utf8(&self.pending) {
                Ok(all) => (all.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            text.push_str(core::str::from_utf8(&self.pending[..valid]).unwrap_or_default());
            self.pending.drain(..valid + wrong.unwrap_or(0));
            if wrong.is_none() {
                return text;
            }
            text.push('\u{fffd}');
        }
    }

    /// The end: a character that was not completed becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends a text.
    Token(u32),
    /// A text to stop at; it is not part of the output.
    Text(String),
    /// As many tokens as wanted.
    Length,
}

/// A text that grows token by token at the end of a KV file.
///
/// The server runs ahead while the program looks at what came (see [`crate::stream`]). Until the
/// generation has ended, or has been dropped, other calls on its file answer `EBUSY`. The token
/// chosen last is not in the file: it would be the next pass's. So, once it has ended, `kv.len()` is
/// what the file had, plus the prompt, plus the tokens without the last.
///
/// ```
/// # let host = symphony::testing::Host::new();
/// # host.run(|| symphony::block_on(async {
/// use symphony::{decode::Generation, model, process, KvFile};
///
/// let kv = KvFile::create()?;
/// let prompt = model::tokenize("def main():")?;
/// let mut generation = Generation::new(&kv, &prompt)?.max_tokens(32).stop("\n\n");
/// while let Some(piece) = generation.next().await? {
///     process::send(piece)?;
/// }
/// assert!(generation.tokens().len() <= 32);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug)]
#[must_use = "a generation computes as it is asked for its text"]
pub struct Generation<'a> {
    kv: &'a KvFile,
    prompt: Vec<u32>,
    stream: Option<Stream>,
    /// The file's length before, where there is a text to stop at: what was ahead is rolled back.
    before: u32,
    failed: Option<Error>,
    tokens: Vec<u32>,
    logprob: f64,
    max_tokens: usize,
    ahead: u32,
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    stop_texts: Vec<String>,
    constraint: Option<&'a Constraint>,
    utf8: Utf8,
    /// Text that may be the beginning of one to stop at.
    held: String,
    finish: Option<Finish>,
}

impl<'a> Generation<'a> {
    /// Goes on after the file's entries and `prompt`: greedy, at most 128 tokens, until the model
    /// ends the text. An empty prompt is `EINVAL`: a pass needs a token to look at.
    pub fn new(kv: &'a KvFile, prompt: &[u32]) -> Result<Generation<'a>> {
        if prompt.is_empty() {
            return Err(Error::new("generate", Errno::EINVAL));
        }
        Ok(Generation {
            kv,
            prompt: prompt.to_vec(),
            stream: None,
            before: 0,
            failed: None,
            tokens: Vec::new(),
            logprob: 0.0,
            max_tokens: 128,
            ahead: 8,
            sampler: Sampler::Greedy,
            stop_tokens: model::info()?.eos,
            stop_texts: Vec::new(),
            constraint: None,
            utf8: Utf8::new(),
            held: String::new(),
            finish: None,
        })
    }

    /// At most so many tokens.
    pub fn max_tokens(mut self, count: usize) -> Self {
        self.max_tokens = count;
        self
    }

    /// How many tokens the server may compute before this program has looked at them; 8 without it.
    pub fn ahead(mut self, count: u32) -> Self {
        self.ahead = count;
        self
    }

    /// Chooses tokens so.
    pub fn sampler(mut self, sampler: Sampler) -> Self {
        self.sampler = sampler;
        self
    }

    /// Stops before this text, too.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop_texts.push(text.into());
        self
    }

    /// Stops at these tokens instead of the model's own; with none, only at the length.
    pub fn stop_tokens(mut self, tokens: &[u32]) -> Self {
        self.stop_tokens = tokens.to_vec();
        self
    }

    /// Gives a text of the constraint's, and ends with it.
    pub fn constrained(mut self, constraint: &'a Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// The tokens so far, with the one that ended the text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The log-probability of those tokens, in all.
    pub fn logprob(&self) -> f64 {
        self.logprob
    }

    /// Why it ended, once it has.
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// One more token, or `None` after the last. Mixing it with [`next`](Self::next) leaves the
    /// token's text out.
    pub async fn step(&mut self) -> Result<Option<Choice>> {
        if self.finish.is_none() && self.tokens.len() >= self.max_tokens {
            self.finish = Some(Finish::Length);
        }
        if self.finish.is_some() {
            return Ok(None);
        }
        let choice = match self.choice().await {
            Ok(Some(choice)) => choice,
            Ok(None) => {
                self.finish = Some(Finish::Length); // the context's
                return Ok(None);
            }
            Err(error) => {
                self.failed = Some(error);
                return Err(error);
            }
        };
        self.tokens.push(choice.token);
        self.logprob += f64::from(choice.logprob);
        if self.stop_tokens.contains(&choice.token) {
            self.finish = Some(Finish::Token(choice.token));
        }
        Ok(Some(choice))
    }

    async fn choice(&mut self) -> Result<Option<Choice>> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.stream.is_none() {
            if !self.stop_texts.is_empty() {
                self.before = self.kv.len()?;
            }
            let max = u32::try_from(self.max_tokens).unwrap_or(u32::MAX);
            let mut generate = self.kv.generate(&self.prompt).max(max).ahead(self.ahead);
            if let Some(constraint) = self.constraint {
                generate = generate.constrained(constraint);
            }
            self.stream = Some(self.sampler.begin(generate.stop(&self.stop_tokens)));
        }
        match &mut self.stream {
            Some(stream) => stream.next().await,
            None => Ok(None),
        }
    }

    /// A text has ended it, which the server does not know of: what it computed behind goes.
    fn roll_back(&mut self) -> Result<()> {
        self.stream = None;
        let kept = self.prompt.len() + self.tokens.len() - 1;
        self.kv.truncate(self.before + kept as u32)
    }

    /// The next piece of text, never empty and never half a character; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            let piece = match self.step().await? {
                None => return Ok(some(self.rest())),
                Some(_) if self.finish.is_some() => String::new(),
                Some(choice) => self.utf8.push(&model::detokenize(&[choice.token])?),
            };
            self.held.push_str(&piece);
            let ready = self.release();
            if let (Some(Finish::Text(_)), Some(_)) = (&self.finish, &self.stream) {
                self.roll_back()?;
            }
            if !ready.is_empty() {
                return Ok(Some(ready));
            }
        }
    }

    /// All the text that is still to come.
    pub async fn text(&mut self) -> Result<String> {
        let mut text = String::new();
        while let Some(piece) = self.next().await? {
            text.push_str(&piece);
        }
        Ok(text)
    }

    /// What of the held text is surely not part of one to stop at.
    fn release(&mut self) -> String {
        if self.finish.is_some() {
            return String::new();
        }
        let starts = self.stop_texts.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        if let Some((start, stop)) = starts.min_by_key(|(start, _)| *start) {
            self.finish = Some(Finish::Text(stop.clone()));
            self.utf8 = Utf8::new();
            self.held.truncate(start);
            return String::new();
        }
        let kept = self.stop_texts.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - kept);
        core::mem::replace(&mut self.held, kept)
    }

    /// What is left at the end.
    fn rest(&mut self) -> String {
        let mut text = core::mem::take(&mut self.held);
        text.push_str(&self.utf8.finish());
        text
    }
}

fn some(text: String) -> Option<String> {
    if text.is_empty() {
        None
    } else {
        Some(text)
    }
}

/// The length of the longest end of `text` that is a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len());
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&stop.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::testing::Host;
    use alloc::format;
    use alloc::rc::Rc;
    use alloc::vec;

    /// A model that says `text` and then ends.
    fn reciting(text: &str) -> Host {
        let said: Rc<[u8]> = text.as_bytes().into();
        Host::new().model(move |history| {
            let mut logits = vec![0.0; 257];
            let next = said.get(history.len() - 1).map_or(256, |byte| usize::from(*byte));
            logits[next] = 20.0;
            logits
        })
    }

    fn generate(text: &str, with: impl FnOnce(Generation) -> Generation) -> (Vec<String>, Finish) {
        reciting(text).run(|| {
            block_on(async {
                let kv = KvFile::create()?;
                let mut generation = with(Generation::new(&kv, &[0])?);
                let mut pieces = Vec::new();
                while let Some(piece) = generation.next().await? {
                    pieces.push(piece);
                }
                assert_eq!(generation.next().await?, None);
                Result::Ok((pieces, generation.finish().cloned().unwrap()))
            })
            .unwrap()
        })
    }

    #[test]
    fn text_comes_in_whole_characters() {
        let (pieces, finish) = generate("a\u{e9}\u{1f600}", |g| g);
        assert_eq!(pieces, ["a", "\u{e9}", "\u{1f600}"]);
        assert_eq!(finish, Finish::Token(256));
    }

    #[test]
    fn a_character_cut_by_the_length_is_shown_as_broken() {
        let (pieces, finish) = generate("a\u{e9}", |g| g.max_tokens(2));
        assert_eq!(pieces, ["a", "\u{fffd}"]);
        assert_eq!(finish, Finish::Length);
    }

    #[test]
    fn a_text_to_stop_at_is_not_shown_and_false_starts_are() {
        let (pieces, finish) = generate("a\nb\n\nc", |g| g.stop("\n\n"));
        assert_eq!(pieces, ["a", "\nb"]);
        assert_eq!(finish, Finish::Text("\n\n".into()));
        let (pieces, _) = generate("ab\n", |g| g.stop("\n\n").stop("bc"));
        assert_eq!(pieces.concat(), "ab\n");
    }

    #[test]
    fn an_empty_prompt_is_refused() {
        Host::new().run(|| {
            let kv = KvFile::create().unwrap();
            assert_eq!(Generation::new(&kv, &[]).unwrap_err().errno, Errno::EINVAL);
        });
    }

    #[test]
    fn nothing_is_generated_past_the_length() {
        let (pieces, finish) = generate("abc", |g| g.max_tokens(0));
        assert_eq!((pieces.len(), finish), (0, Finish::Length));
    }

    #[test]
    fn the_file_holds_all_but_the_last_token() {
        reciting("hello").run(|| {
            let kv = KvFile::create().unwrap();
            let mut generation = Generation::new(&kv, &[0]).unwrap().max_tokens(3);
            assert_eq!(block_on(generation.text()).unwrap(), "hel");
            assert_eq!(generation.tokens(), &[104, 101, 108]);
            assert_eq!(kv.tokens(0..3).unwrap(), [0, 104, 101]);
            assert_eq!(kv.len().unwrap(), 3);
        });
    }

    #[test]
    fn what_the_server_ran_ahead_of_a_text_to_stop_at_is_rolled_back() {
        reciting("hello world").run(|| {
            let kv = KvFile::create().unwrap();
            let first = block_on(Generation::new(&kv, &[0]).unwrap().max_tokens(2).text());
            assert_eq!((first.unwrap().as_str(), kv.len().unwrap()), ("he", 2));
            let mut generation = Generation::new(&kv, &[101]).unwrap().ahead(6).stop(" w");
            assert_eq!(block_on(generation.text()).unwrap(), "llo");
            assert_eq!(generation.finish(), Some(&Finish::Text(" w".into())));
            assert_eq!(generation.tokens(), b"llo w".map(u32::from));
            assert_eq!(kv.tokens(2..7).unwrap(), b"ello ".map(u32::from));
            assert_eq!(kv.len().unwrap(), 7);
        });
    }

    #[test]
    fn an_error_is_no_end() {
        Host::new().run(|| {
            let kv = KvFile::create().unwrap();
            let mut generation = Generation::new(&kv, &[999]).unwrap();
            for _ in 0..2 {
                assert_eq!(block_on(generation.text()).unwrap_err().errno, Errno::EINVAL);
            }
            assert_eq!(generation.finish(), None);
        });
    }

    #[test]
    fn the_same_seed_gives_the_same_text() {
        let text = |seed| {
            Host::new().run(|| {
                let kv = KvFile::create().unwrap();
                let sampler = Sampler::new(1.0, Some(seed));
                let generation = Generation::new(&kv, &[65]).unwrap().sampler(sampler);
                format!("{:?}", block_on(generation.max_tokens(8).text()).unwrap())
            })
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
