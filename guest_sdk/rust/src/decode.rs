//! Decoding: what nearly every program wants between forward passes and text.

use crate::error::{Error, Result};
use crate::kv::KvFile;
use crate::model;
use crate::pred::Choice;
use crate::sampling::Sampling;
use crate::stream::Stream;
use alloc::string::String;
use alloc::vec::Vec;

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

/// A text that grows token by token at the end of a KV file: [`KvFile::generate`] starts it.
///
/// The server runs ahead while the program looks at what came (see [`crate::stream`]). Until the
/// generation has ended, or has been dropped, other calls on its file answer `EBUSY`. The token
/// chosen last is not in the file: it would be the next pass's. So, once it has ended, `kv.len()` is
/// what the file had, plus the prompt, plus the tokens without the last.
///
/// ```
/// # let host = symphony::testing::Host::new();
/// # host.run(|| symphony::block_on(async {
/// use symphony::{model, process, KvFile, Sampling};
///
/// let kv = KvFile::create()?;
/// let prompt = model::tokenize("def main():")?;
/// let mut generation = kv.generate(&prompt, &Sampling::new().max_tokens(32).stop("\n\n"));
/// while let Some(piece) = generation.next().await? {
///     process::send(piece)?;
/// }
/// assert!(generation.tokens().len() <= 32);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug)]
#[must_use = "dropping a generation ends it"]
pub struct Generation<'a> {
    kv: &'a KvFile,
    stream: Option<Stream>,
    /// What the file had before, with the prompt: what was computed past a stop text is rolled back.
    before: usize,
    failed: Option<Error>,
    tokens: Vec<u32>,
    logprob: f64,
    max_tokens: usize,
    stop_tokens: Vec<u32>,
    stop_texts: Vec<String>,
    utf8: Utf8,
    /// Text that may be the beginning of one to stop at.
    held: String,
    finish: Option<Finish>,
}

impl<'a> Generation<'a> {
    #[track_caller]
    pub(crate) fn new(kv: &'a KvFile, prompt: &[u32], sampling: &Sampling) -> Generation<'a> {
        let mut generation = Generation {
            kv,
            stream: None,
            before: 0,
            failed: None,
            tokens: Vec::new(),
            logprob: 0.0,
            max_tokens: sampling.max_tokens.unwrap_or(usize::MAX),
            stop_tokens: Vec::new(),
            stop_texts: sampling.stop_texts().to_vec(),
            utf8: Utf8::new(),
            held: String::new(),
            finish: None,
        };
        match generation.lengths(prompt.len(), sampling) {
            Ok(()) => generation.stream = Some(Stream::new(kv, prompt, sampling)),
            Err(error) => generation.failed = Some(error),
        }
        generation
    }

    /// Asks for what has to be known before it starts: then the file is busy.
    #[track_caller]
    fn lengths(&mut self, prompt: usize, sampling: &Sampling) -> Result<()> {
        self.stop_tokens = sampling.stop_tokens()?;
        if !self.stop_texts.is_empty() {
            self.before = self.kv.len()? as usize + prompt;
        }
        Ok(())
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
    pub async fn next_token(&mut self) -> Result<Option<Choice>> {
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
                self.failed = Some(error.clone());
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
        match (&self.failed, &mut self.stream) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(stream)) => stream.next().await,
            (None, None) => Ok(None),
        }
    }

    /// A text has ended it, which the server does not know of: what it computed behind goes.
    fn roll_back(&mut self) -> Result<()> {
        self.stream = None;
        self.kv.truncate((self.before + self.tokens.len() - 1) as u32)
    }

    /// The next piece of text, never empty and never half a character; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            let piece = match self.next_token().await? {
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
    use crate::testing::Host;
    use crate::{block_on, Errno};
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

    fn generate(text: &str, sampling: &Sampling) -> (Vec<String>, Finish) {
        reciting(text).run(|| {
            block_on(async {
                let kv = KvFile::create()?;
                let mut generation = kv.generate(&[0], sampling);
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
        let (pieces, finish) = generate("a\u{e9}\u{1f600}", &Sampling::new());
        assert_eq!(pieces, ["a", "\u{e9}", "\u{1f600}"]);
        assert_eq!(finish, Finish::Token(256));
    }

    #[test]
    fn a_character_cut_by_the_length_is_shown_as_broken() {
        let (pieces, finish) = generate("a\u{e9}", &Sampling::new().max_tokens(2));
        assert_eq!(pieces, ["a", "\u{fffd}"]);
        assert_eq!(finish, Finish::Length);
    }

    #[test]
    fn a_text_to_stop_at_is_not_shown_and_false_starts_are() {
        let (pieces, finish) = generate("a\nb\n\nc", &Sampling::new().stop("\n\n"));
        assert_eq!(pieces, ["a", "\nb"]);
        assert_eq!(finish, Finish::Text("\n\n".into()));
        let (pieces, _) = generate("ab\n", &Sampling::new().stop("\n\n").stop("bc"));
        assert_eq!(pieces.concat(), "ab\n");
    }

    #[test]
    fn an_empty_prompt_is_refused() {
        Host::new().run(|| {
            let kv = KvFile::create().unwrap();
            let refused = block_on(kv.generate(&[], &Sampling::new()).text()).unwrap_err();
            assert_eq!((refused.errno, refused.operand()), (Errno::EINVAL, Some("no tokens")));
        });
    }

    #[test]
    fn nothing_is_generated_past_the_length() {
        let (pieces, finish) = generate("abc", &Sampling::new().max_tokens(0));
        assert_eq!((pieces.len(), finish), (0, Finish::Length));
    }

    #[test]
    fn the_file_holds_all_but_the_last_token() {
        reciting("hello").run(|| {
            let kv = KvFile::create().unwrap();
            let mut generation = kv.generate(&[0], &Sampling::new().max_tokens(3));
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
            let first = block_on(kv.generate(&[0], &Sampling::new().max_tokens(2)).text());
            assert_eq!((first.unwrap().as_str(), kv.len().unwrap()), ("he", 2));
            let mut generation = kv.generate(&[101], &Sampling::new().lookahead(6).stop(" w"));
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
            let mut generation = kv.generate(&[999], &Sampling::new());
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
                let seeded = Sampling::new().max_tokens(8).temperature(1.0).seed(seed);
                format!("{:?}", block_on(kv.generate(&[65], &seeded).text()).unwrap())
            })
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
