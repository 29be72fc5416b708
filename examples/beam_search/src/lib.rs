//! Beam search: the `beams` best continuations, each with a KV file of its own.

use std::error::Error;
use symphony::json::{list, Object};
use symphony::pred::Choice;
use symphony::{model, process, try_join_all, Input, KvFile};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let prompt = model::tokenize(input.text("prompt")?)?;
    let info = model::info()?;
    let search = Search {
        beams: input.whole("beams", 4, 1..=64)?,
        max_tokens: input.whole("max_tokens", 16, 1..=131_072)?,
        length_penalty: input.number("length_penalty", 1.0)?,
        vocab_size: info.vocab_size,
        eos: info.eos,
    };
    let found: symphony::Result<Vec<String>> =
        search.run(&prompt).await?.iter().map(Hypothesis::to_json).collect();
    process::send(Object::new().raw("beams", &list(found?)).finish())?;
    Ok(())
}

struct Search {
    beams: usize,
    max_tokens: usize,
    /// A hypothesis' score is its log-probability divided by its length to this power.
    length_penalty: f64,
    vocab_size: u32,
    eos: Vec<u32>,
}

/// A continuation that may grow: its file holds all of it but the last token.
struct Beam {
    kv: KvFile,
    tokens: Vec<u32>,
    logprob: f64,
}

/// A continuation that is finished.
#[derive(Clone, Debug, PartialEq)]
struct Hypothesis {
    tokens: Vec<u32>,
    logprob: f64,
    score: f64,
}

/// A beam's continuation by one token.
#[derive(Clone, Copy)]
struct Candidate {
    parent: usize,
    token: u32,
    logprob: f64,
}

impl Search {
    /// The best continuations, best first.
    async fn run(&self, prompt: &[u32]) -> Result<Vec<Hypothesis>, Box<dyn Error>> {
        let (last, before) = prompt.split_last().ok_or("the prompt is empty")?;
        let kv = KvFile::create()?;
        if !before.is_empty() {
            kv.prefill(before).await?;
        }
        let mut live = vec![Beam { kv, tokens: vec![*last], logprob: 0.0 }];
        let mut finished = Vec::new();
        for _ in 0..self.max_tokens {
            let best = self.candidates(&live).await?;
            live = self.advance(live, &best, &mut finished)?;
            self.keep_best(&mut finished);
            if live.is_empty() || self.is_decided(&live, &finished) {
                break;
            }
        }
        finished.extend(live.into_iter().map(|beam| self.hypothesis(beam.tokens, beam.logprob)));
        self.keep_best(&mut finished);
        Ok(finished)
    }

    /// The best continuations of all beams by one token: one pass a beam, all in one step.
    async fn candidates(&self, live: &[Beam]) -> symphony::Result<Vec<Candidate>> {
        // As many again, because all of a beam's best could be ends of the text.
        let count = (2 * self.beams as u32).min(self.vocab_size);
        let passes =
            live.iter().map(|beam| beam.kv.pred(&beam.tokens[beam.tokens.len() - 1..]).top(count));
        let mut all = Vec::new();
        for (parent, choices) in try_join_all(passes).await?.into_iter().enumerate() {
            all.extend(choices.into_iter().map(|Choice { token, logprob }| Candidate {
                parent,
                token,
                logprob: live[parent].logprob + f64::from(logprob),
            }));
        }
        all.sort_by(|a, b| {
            b.logprob.total_cmp(&a.logprob).then((a.parent, a.token).cmp(&(b.parent, b.token)))
        });
        all.truncate(2 * self.beams);
        Ok(all)
    }

    /// The beams of the next step; texts that end among the best are finished.
    fn advance(
        &self,
        live: Vec<Beam>,
        best: &[Candidate],
        finished: &mut Vec<Hypothesis>,
    ) -> symphony::Result<Vec<Beam>> {
        let mut next: Vec<Beam> = Vec::new();
        for (rank, candidate) in best.iter().enumerate() {
            let parent = &live[candidate.parent];
            let mut tokens = parent.tokens.clone();
            tokens.push(candidate.token);
            if self.eos.contains(&candidate.token) {
                if rank < self.beams {
                    finished.push(self.hypothesis(tokens, candidate.logprob));
                }
            } else if next.len() < self.beams {
                // A fork shares the parent's pages; pages without a fork go with `live`.
                next.push(Beam { kv: parent.kv.fork()?, tokens, logprob: candidate.logprob });
            }
        }
        Ok(next)
    }

    fn hypothesis(&self, tokens: Vec<u32>, logprob: f64) -> Hypothesis {
        let tokens = tokens[1..].to_vec(); // the first one is the prompt's last
        let length = tokens.len().max(1) as f64;
        Hypothesis { score: logprob / length.powf(self.length_penalty), tokens, logprob }
    }

    fn keep_best(&self, finished: &mut Vec<Hypothesis>) {
        finished.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
        finished.truncate(self.beams);
    }

    /// Whether no live beam can still reach the finished ones: log-probabilities only fall.
    fn is_decided(&self, live: &[Beam], finished: &[Hypothesis]) -> bool {
        let best = live.iter().map(|beam| beam.logprob).fold(f64::NEG_INFINITY, f64::max);
        let longest = (self.max_tokens as f64).powf(self.length_penalty.max(0.0));
        finished.len() >= self.beams && finished.last().map_or(false, |h| best / longest < h.score)
    }
}

impl Hypothesis {
    fn to_json(&self) -> symphony::Result<String> {
        let text = String::from_utf8_lossy(&model::detokenize(&self.tokens)?).into_owned();
        let found = Object::new().text("text", &text).decimal("score", self.score);
        let found = found.decimal("logprob", self.logprob);
        Ok(found.raw("tokens", &format!("{:?}", self.tokens)).finish())
    }
}

#[cfg(test)]
mod tests;
