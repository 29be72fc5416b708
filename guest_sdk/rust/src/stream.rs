//! Run-ahead decoding: the server goes on sampling while the program looks at what came.

use crate::error::{Errno, Result};
use crate::executor::{Operand, Origin, Pieces};
use crate::kv::KvFile;
use crate::pred::{scored, Choice, Scored};
use crate::raw;
use crate::sampling::Sampling;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Tokens that come as the server samples them: [`KvFile::stream`] starts them.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// # use symphony::{model, KvFile, Sampling};
/// let kv = KvFile::create()?;
/// let prompt = model::tokenize("for i in")?;
/// let mut tokens = kv.stream(&prompt, &Sampling::new().max_tokens(8));
/// let mut count = 0;
/// while let Some(choice) = tokens.next().await? {
///     count += 1;
///     assert!(choice.logprob <= 0.0);
/// }
/// // The last token is not in the file.
/// assert_eq!(kv.len()?, prompt.len() as u32 + count - 1);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
///
/// Until it has given its last token, or has been dropped or cancelled, other calls on its file
/// answer `EBUSY`. Dropping it ends the generation: the file then holds every token that was
/// appended, up to [`Sampling::lookahead`] more than were taken, and [`KvFile::truncate`] rolls them back.
///
/// An error ends it as well, behind the tokens that came before.
#[must_use = "dropping a stream ends its generation"]
pub struct Stream {
    pieces: Pieces,
    ready: VecDeque<Scored>,
    record: usize, // bytes of a token and the best ones beside it
}

impl Stream {
    #[track_caller]
    pub(crate) fn new(kv: &KvFile, tokens: &[u32], sampling: &Sampling) -> Stream {
        let largest = tokens.iter().copied().max().unwrap_or(0);
        let origin = Origin::new("generate", Operand::Tokens { count: tokens.len(), largest });
        let pieces = match sampling.stop_tokens() {
            _ if sampling.max_tokens == Some(0) => Pieces::none(origin),
            Err(error) => Pieces::new(origin, -error.errno.number()),
            Ok(stop) => {
                let options = sampling.options(&stop);
                let (start, count) = (tokens.as_ptr(), tokens.len());
                Pieces::new(origin, unsafe {
                    raw::generate(kv.handle(), start, count, options.as_ptr(), options.len())
                })
            }
        };
        let record = 8 * (1 + sampling.logprobs as usize);
        Stream { pieces, ready: VecDeque::new(), record }
    }

    /// One more token, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Choice>> {
        Ok(self.next_scored().await?.map(|scored| scored.choice))
    }

    /// One more token and the best ones beside it, as many as [`Sampling::logprobs`] asked for;
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
        self.ready.extend(records.ok_or_else(|| self.pieces.error(Errno::EIO))?);
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
    use crate::pred::TokenSet;
    use crate::testing::{Host, EOS};
    use crate::{block_on, join_all};

    /// So many tokens, whatever they are.
    fn exactly(count: usize) -> Sampling {
        Sampling::new().max_tokens(count).exact(true)
    }

    fn tokens(choices: &[Choice]) -> Vec<u32> {
        choices.iter().map(|choice| choice.token).collect()
    }

    async fn loop_of_passes(count: usize, sampling: &Sampling) -> Vec<Choice> {
        let kv = KvFile::create().unwrap();
        let mut all: Vec<Choice> = Vec::new();
        for _ in 0..count {
            let next = [all.last().map_or(7, |choice| choice.token)];
            all.push(kv.pred(&next).sample(sampling).await.unwrap());
        }
        all
    }

    #[test]
    fn it_gives_what_a_loop_of_passes_gives() {
        let seeded = exactly(12).temperature(1.0).seed(5).lookahead(0);
        Host::new().run(|| {
            block_on(async {
                for sampling in [exactly(12), seeded] {
                    let kv = KvFile::create().unwrap();
                    let all = kv.stream(&[7], &sampling).rest().await.unwrap();
                    assert_eq!(all, loop_of_passes(12, &sampling).await);
                    assert_eq!(kv.tokens(1..12).unwrap(), tokens(&all)[..11]);
                    assert_eq!(kv.len().unwrap(), 12);
                }
            });
        });
    }

    #[test]
    fn it_tells_the_best_tokens_beside_each() {
        let seeded = exactly(4).temperature(3.0).seed(5).logprobs(3);
        Host::new().run(|| {
            block_on(async {
                let kv = KvFile::create().unwrap();
                let mut stream = kv.stream(&[7], &seeded);
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
                let mut stream = kv.stream(&[7], &exactly(6).lookahead(2));
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
                    let all = kv.stream(&[7], &Sampling::new()).rest().await.unwrap();
                    assert_eq!(tokens(&all), [EOS]);
                    assert_eq!(kv.len().unwrap(), 1);
                    let biased = Sampling::new().logit_bias(&[(3, 20.0)]).stop_token_ids(&[3]);
                    let all = kv.stream(&[7], &biased).rest().await.unwrap();
                    assert_eq!(tokens(&all), [3]);
                })
            },
        );
    }

    #[test]
    fn its_file_is_busy_until_it_ends() {
        let (_, seen) = Host::new().observe(|| {
            block_on(async {
                let kv = KvFile::create().unwrap();
                let mut stream = kv.stream(&[7], &exactly(99));
                assert_eq!(kv.len().unwrap_err().errno, Errno::EBUSY);
                assert_eq!(kv.fork().unwrap_err().errno, Errno::EBUSY);
                let error = kv.stream(&[1], &exactly(9)).next().await.unwrap_err();
                assert_eq!((error.call, error.errno), ("generate", Errno::EBUSY));
                let first = stream.next().await.unwrap().unwrap();
                stream.cancel();
                assert!(kv.len().unwrap() <= 1 + 1 + 8);
                kv.truncate(1).unwrap();
                let mut rest = kv.stream(&[first.token], &exactly(1));
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
                let streams = files.iter().map(|kv| kv.stream(&[7], &exactly(4)).rest());
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
                let bound = exactly(5).allowed_tokens(allowed).logit_bias(&[(17, 99.0)]);
                let stream = kv.stream(&[7], &bound);
                assert_eq!(tokens(&stream.rest().await.unwrap()), [17; 5]);
                assert_eq!(kv.stream(&[1], &exactly(0)).rest().await.unwrap(), []);
            })
        });
    }
}
