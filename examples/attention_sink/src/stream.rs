//! A KV file that forgets its middle (Xiao et al., "Efficient Streaming Language Models with Attention
//! Sinks", arXiv 2309.17453).

use symphony::{KvFile, Result, Sampling};

pub struct Stream {
    /// The sinks, then the window.
    pub kv: KvFile,
    /// Those entries' tokens.
    pub tokens: Vec<u32>,
    /// How many of the first tokens stay: models lean on them, regardless of their text.
    pub sinks: usize,
    /// How many of the last ones stay.
    pub window: usize,
    /// How many go at once.
    pub block: usize,
    pub max_context: usize,
    /// The next token's position.
    pub next: usize,
    /// How often positions ran out.
    pub rebuilt: u64,
}

impl Stream {
    /// Reads tokens, at most a block, and chooses the one behind them.
    pub async fn take(
        &mut self,
        tokens: &[u32],
        bias: &[(u32, f32)],
        sampling: &Sampling,
    ) -> Result<u32> {
        if self.tokens.len() + tokens.len() > self.sinks + self.window + self.block {
            self.forget().await?;
        }
        if self.next + tokens.len() > self.max_context {
            self.rebuild().await?;
        }
        let positions = range(self.next, tokens.len());
        let pred = self.kv.pred(tokens).positions(&positions).logit_bias(bias).blocking();
        let chosen = pred.sample(sampling).await?;
        self.tokens.extend(tokens);
        self.next += tokens.len();
        Ok(chosen.token)
    }

    /// Lets all go but the sinks and the window.
    ///
    /// Positions are those in what is kept, as in the paper: the sinks stand right before the window. There
    /// the whole window is rotated anew; only differences of positions matter, so here the few sinks move.
    async fn forget(&mut self) -> Result<()> {
        let first = self.tokens.len() - self.window;
        let kept = KvFile::create()?;
        if self.sinks > 0 {
            let positions = range(self.next - self.window - self.sinks, self.sinks);
            kept.pred(&self.tokens[..self.sinks]).positions(&positions).prefill().await?;
        }
        kept.append(&self.kv, first as u32..self.tokens.len() as u32)?;
        self.kv = kept;
        self.tokens.drain(self.sinks..first);
        Ok(())
    }

    /// Begins again at position 0, when the model knows no further one.
    async fn rebuild(&mut self) -> Result<()> {
        let first = self.tokens.len() - self.window; // the window is far smaller than the context
        self.tokens.drain(self.sinks..first);
        self.kv = KvFile::create()?;
        self.kv.prefill(&self.tokens).await?;
        self.next = self.tokens.len();
        self.rebuilt += 1;
        Ok(())
    }
}

fn range(start: usize, count: usize) -> Vec<u32> {
    (start..start + count).map(|position| position as u32).collect()
}
