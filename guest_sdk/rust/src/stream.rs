//! Run-ahead decoding: the server goes on sampling while the program looks at what came.

use crate::constraint::{Constraint, Text};
use crate::error::{Errno, Error, Result};
use crate::executor::Pieces;
use crate::kv::KvFile;
use crate::msgpack::Writer;
use crate::pred::{scored, Choice, Sampling, Scored, TokenSet};
use crate::raw;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// A generation in the making: [`KvFile::generate`] begins it, options refine it, and
/// [`argmax`](Generate::argmax) or [`sample`](Generate::sample) starts it.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// # use symphony::{model, KvFile};
/// let kv = KvFile::create()?;
/// let prompt = model::tokenize("for i in")?;
/// let mut tokens = kv.generate(&prompt).max(8).stop(&model::info()?.eos).argmax();
/// let mut count = 0;
/// while let Some(choice) = tokens.next().await? {
///     count += 1;
///     assert!(choice.logprob <= 0.0);
/// }
/// // The last token is not in the file.
/// assert_eq!(kv.len()?, prompt.len() as u32 + count - 1);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[must_use = "a generation starts with argmax() or sample()"]
pub struct Generate<'a> {
    kv: &'a KvFile,
    tokens: &'a [u32],
    max: Option<u32>,
    stop: &'a [u32],
    ahead: Option<u32>,
    lot: u32,
    bias: &'a [(u32, f32)],
    bias_mask: Option<(&'a TokenSet, f32)>,
    allow: Option<&'a TokenSet>,
    constraint: Option<Text<'a>>,
    logprobs: u32,
}

impl<'a> Generate<'a> {
    pub(crate) fn new(kv: &'a KvFile, tokens: &'a [u32]) -> Generate<'a> {
        Generate {
            kv,
            tokens,
            max: None,
            stop: &[],
            ahead: None,
            lot: 1,
            bias: &[],
            bias_mask: None,
            allow: None,
            constraint: None,
            logprobs: 0,
        }
    }

    /// At most so many tokens, 1 or more; without it, as many as the context has room for.
    pub fn max(mut self, count: u32) -> Self {
        self.max = Some(count);
        self
    }

    /// Ends with any of these tokens. The one that ended it is given, and not appended.
    pub fn stop(mut self, tokens: &'a [u32]) -> Self {
        self.stop = tokens;
        self
    }

    /// How many tokens may be appended that this program has not taken; 8 without it. With 0 each
    /// is appended after it was taken.
    pub fn ahead(mut self, count: u32) -> Self {
        self.ahead = Some(count);
        self
    }

    /// Wakes the program once so many tokens are there, or the last one; at most `ahead` + 1. A
    /// program that has no use for each token as it comes costs less so.
    pub fn lot(mut self, count: u32) -> Self {
        self.lot = count;
        self
    }

    /// Adds finite numbers to the logits of these tokens, in every step.
    pub fn bias(mut self, bias: &'a [(u32, f32)]) -> Self {
        self.bias = bias;
        self
    }

    /// Adds a finite number to the logits of all these tokens, in every step.
    pub fn bias_mask(mut self, tokens: &'a TokenSet, value: f32) -> Self {
        self.bias_mask = Some((tokens, value));
        self
    }

    /// Leaves only these tokens possible, in every step.
    pub fn allow(mut self, tokens: &'a TokenSet) -> Self {
        self.allow = Some(tokens);
        self
    }

    /// Gives a text of the constraint's: it ends with one of the model's own tokens for that, as with
    /// a `stop` token, or where `max` cuts it off. See [`Pred::constrained`](crate::pred::Pred::constrained).
    pub fn constrained(mut self, constraint: &'a Constraint) -> Self {
        self.constraint = Some(Text { constraint, since: None });
        self
    }

    /// The same, where the text begins with this entry of the file, from now on.
    pub fn constrained_since(mut self, constraint: &'a Constraint, since: u32) -> Self {
        self.constraint = Some(Text { constraint, since: Some(since) });
        self
    }

    /// Tells the best `k` tokens, at most 20, beside each one: see [`Stream::next_scored`].
    pub fn logprobs(mut self, k: u32) -> Self {
        self.logprobs = k;
        self
    }

    /// Starts it; the best token each time.
    pub fn argmax(self) -> Stream {
        self.start(None)
    }

    /// Starts it; tokens drawn at random. Without a seed the server draws one for all of them.
    pub fn sample(self, sampling: &Sampling) -> Stream {
        self.start(Some(sampling))
    }

    fn start(self, sampling: Option<&Sampling>) -> Stream {
        let options = self.options(sampling);
        let result = unsafe {
            raw::generate(
                self.kv.handle(),
                self.tokens.as_ptr(),
                self.tokens.len(),
                options.as_ptr(),
                options.len(),
            )
        };
        let record = 8 * (1 + self.logprobs as usize);
        Stream { pieces: Pieces::new("generate", result), ready: VecDeque::new(), record }
    }

    /// The options in MessagePack; nothing at all where they are the defaults.
    fn options(&self, sampling: Option<&Sampling>) -> Vec<u8> {
        let given = [
            sampling.is_some(),
            self.max.is_some(),
            !self.stop.is_empty(),
            self.ahead.is_some(),
            self.lot != 1,
            !self.bias.is_empty(),
            self.bias_mask.is_some(),
            self.allow.is_some(),
            self.constraint.is_some(),
            self.constraint.as_ref().map_or(false, |text| text.since.is_some()),
            self.logprobs > 0,
        ];
        let count = given.iter().filter(|given| **given).count();
        let mut out = Writer::new();
        if count == 0 {
            return out.into_bytes();
        }
        out.map(count);
        if let Some(sampling) = sampling {
            out.str("get").map(1).str("sample");
            sampling.write(&mut out);
        }
        if let Some(max) = self.max {
            out.str("max").uint(u64::from(max));
        }
        if !self.stop.is_empty() {
            out.str("stop").array(self.stop.len());
            self.stop.iter().fold(&mut out, |out, token| out.uint(u64::from(*token)));
        }
        if let Some(ahead) = self.ahead {
            out.str("ahead").uint(u64::from(ahead));
        }
        if self.lot != 1 {
            out.str("lot").uint(u64::from(self.lot));
        }
        if !self.bias.is_empty() {
            out.str("bias").map(self.bias.len());
            for (token, bias) in self.bias {
                out.uint(u64::from(*token)).f32(*bias);
            }
        }
        if let Some((tokens, value)) = self.bias_mask {
            out.str("bias_mask").map(2).str("mask").bin(tokens.as_bytes()).str("value").f32(value);
        }
        if let Some(tokens) = self.allow {
            out.str("allow").bin(tokens.as_bytes());
        }
        if let Some(text) = &self.constraint {
            text.write(&mut out);
        }
        if self.logprobs > 0 {
            out.str("logprobs").uint(u64::from(self.logprobs));
        }
        out.into_bytes()
    }
}

impl fmt::Debug for Generate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generate({} tokens)", self.tokens.len())
    }
}

/// Tokens that come as the server samples them.
///
/// Until it has given its last token, or has been dropped or cancelled, other calls on its file
/// answer `EBUSY`. Dropping it ends the generation: the file then holds every token that was
/// appended, up to `ahead` more than were taken, and [`KvFile::truncate`] rolls them back.
///
/// An error ends it as well, behind the tokens that came before.
#[must_use = "dropping a stream ends its generation"]
pub struct Stream {
    pieces: Pieces,
    ready: VecDeque<Scored>,
    record: usize, // bytes of a token and the best ones beside it
}

impl Stream {
    /// One more token, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Choice>> {
        Ok(self.next_scored().await?.map(|scored| scored.choice))
    }

    /// One more token and the best ones beside it, as many as [`Generate::logprobs`] asked for;
    /// `None` after the last.
    pub async fn next_scored(&mut self) -> Result<Option<Scored>> {
        if self.ready.is_empty() {
            self.fill().await?;
        }
        Ok(self.ready.pop_front())
    }

    /// All tokens that have come and were not taken, at least one; none after the last.
    pub async fn next_many(&mut self) -> Result<Vec<Choice>> {
        if self.ready.is_empty() {
            self.fill().await?;
        }
        Ok(self.ready.drain(..).map(|scored| scored.choice).collect())
    }

    /// All tokens that are still to come.
    pub async fn rest(mut self) -> Result<Vec<Choice>> {
        let mut all = Vec::new();
        loop {
            let more = self.next_many().await?;
            if more.is_empty() {
                return Ok(all);
            }
            all.extend(more);
        }
    }

    /// Ends the generation now, as dropping does; nothing is appended behind this call.
    pub fn cancel(self) {}

    async fn fill(&mut self) -> Result<()> {
        let bytes = Piece(&mut self.pieces).await?;
        let records: Option<Vec<Scored>> = match bytes.len() % self.record {
            0 => bytes.chunks_exact(self.record).map(scored).collect(),
            _ => None,
        };
        self.ready.extend(records.ok_or(Error::new("generate", Errno::EIO))?);
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} ready)", self.ready.len())
    }
}

struct Piece<'a>(&'a mut Pieces);

impl Future for Piece<'_> {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        self.0.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Host, EOS};
    use crate::{block_on, join_all};

    fn tokens(choices: &[Choice]) -> Vec<u32> {
        choices.iter().map(|choice| choice.token).collect()
    }

    async fn loop_of_passes(count: usize, sampling: Option<&Sampling>) -> Vec<Choice> {
        let kv = KvFile::create().unwrap();
        let mut all: Vec<Choice> = Vec::new();
        for _ in 0..count {
            let next = [all.last().map_or(7, |choice| choice.token)];
            let pass = kv.pred(&next);
            let ticket = sampling.map_or_else(|| kv.pred(&next).argmax(), |s| pass.sample(s));
            all.push(ticket.await.unwrap());
        }
        all
    }

    #[test]
    fn it_gives_what_a_loop_of_passes_gives() {
        let seeded = Sampling { seed: Some(5), ..Sampling::default() };
        Host::new().run(|| {
            block_on(async {
                for sampling in [None, Some(&seeded)] {
                    let kv = KvFile::create().unwrap();
                    let begun = kv.generate(&[7]).max(12);
                    let stream = match sampling {
                        None => begun.argmax(),
                        Some(sampling) => begun.ahead(0).sample(sampling),
                    };
                    let all = stream.rest().await.unwrap();
                    assert_eq!(all, loop_of_passes(12, sampling).await);
                    assert_eq!(kv.tokens(1..12).unwrap(), tokens(&all)[..11]);
                    assert_eq!(kv.len().unwrap(), 12);
                }
            });
        });
    }

    #[test]
    fn it_tells_the_best_tokens_beside_each() {
        let seeded = Sampling { temperature: 3.0, seed: Some(5), ..Sampling::default() };
        Host::new().run(|| {
            block_on(async {
                let kv = KvFile::create().unwrap();
                let mut stream = kv.generate(&[7]).max(4).logprobs(3).sample(&seeded);
                let mut last = 7;
                let passes = KvFile::create().unwrap();
                while let Some(scored) = stream.next_scored().await.unwrap() {
                    let best = passes.pred(&[last]).keep(false).top(3).await.unwrap();
                    assert_eq!(scored.best, best);
                    let same = passes.pred(&[last]).sample_scored(&seeded, 3).await.unwrap();
                    assert_eq!(scored, same);
                    last = scored.choice.token;
                }
                assert_eq!(passes.len().unwrap(), 4);
            });
        });
    }

    #[test]
    fn tokens_that_came_are_taken_together() {
        let (_, seen) = Host::new().observe(|| {
            block_on(async {
                let kv = KvFile::create().unwrap();
                let mut stream = kv.generate(&[7]).max(6).ahead(2).argmax();
                let sleep = crate::process::sleep(core::time::Duration::from_millis(5));
                sleep.await.unwrap();
                assert!(!stream.next_many().await.unwrap().is_empty());
                while stream.next().await.unwrap().is_some() {}
                assert_eq!(stream.next().await.unwrap(), None);
                assert!(stream.next_many().await.unwrap().is_empty());
            })
        });
        assert_eq!((seen.cancelled, seen.tickets_left), (0, 0));
    }

    #[test]
    fn a_stop_token_is_the_last() {
        Host::new().model(|_| (0..257).map(|t| if t == EOS { 9.0 } else { 0.0 }).collect()).run(
            || {
                block_on(async {
                    let kv = KvFile::create().unwrap();
                    let all = kv.generate(&[7]).stop(&[3, EOS]).argmax().rest().await.unwrap();
                    assert_eq!(tokens(&all), [EOS]);
                    assert_eq!(kv.len().unwrap(), 1);
                })
            },
        );
    }

    #[test]
    fn its_file_is_busy_until_it_ends() {
        let (_, seen) = Host::new().observe(|| {
            block_on(async {
                let kv = KvFile::create().unwrap();
                let mut stream = kv.generate(&[7]).argmax();
                assert_eq!(kv.len().unwrap_err().errno, Errno::EBUSY);
                assert_eq!(kv.fork().unwrap_err().errno, Errno::EBUSY);
                let error = kv.generate(&[1]).argmax().next().await.unwrap_err();
                assert_eq!((error.call, error.errno), ("generate", Errno::EBUSY));
                let first = stream.next().await.unwrap().unwrap();
                stream.cancel();
                assert!(kv.len().unwrap() <= 1 + 1 + 8);
                kv.truncate(1).unwrap();
                let mut rest = kv.generate(&[first.token]).max(1).argmax();
                assert!(rest.next().await.unwrap().is_some());
                assert_eq!(kv.len().unwrap(), 2);
            })
        });
        assert_eq!(seen.tickets_left, 0);
    }

    #[test]
    fn many_share_each_step() {
        let (_, seen) = Host::new().observe(|| {
            block_on(async {
                let files: Vec<KvFile> = (0..5).map(|_| KvFile::create().unwrap()).collect();
                let streams = files.iter().map(|kv| kv.generate(&[7]).max(4).argmax().rest());
                for all in join_all(streams).await {
                    assert_eq!(all.unwrap().len(), 4);
                }
            })
        });
        assert_eq!(seen.passes_per_wait[..4], [5, 5, 5, 5]);
    }

    #[test]
    fn options_reach_every_step() {
        Host::new().run(|| {
            block_on(async {
                let mut allowed = TokenSet::none(257);
                allowed.insert(9);
                allowed.insert(17);
                let kv = KvFile::create().unwrap();
                let stream = kv.generate(&[7]).max(5).allow(&allowed).bias(&[(17, 99.0)]).argmax();
                assert_eq!(tokens(&stream.rest().await.unwrap()), [17; 5]);
                let refused = kv.generate(&[1]).max(0).argmax().rest().await.unwrap_err();
                assert_eq!(refused.errno, Errno::EINVAL);
            })
        });
    }
}
