//! How a reply is decoded: how its tokens are chosen, and where it ends.

use crate::decode::Sampler;
use crate::pred::Sampling;
use alloc::string::String;
use alloc::vec::Vec;

/// How a [`Session`](crate::Session) decodes a reply.
///
/// ```
/// use symphony::{decode::Sampler, Plan};
///
/// let line = Plan::new(64).stop("\n"); // until a line's end, the model's own end, or 64 tokens
/// let drawn = line.clone().sampler(Sampler::new(0.8, Some(7)));
/// // Branches of one text that draw with one seed would all draw the same.
/// assert_ne!(drawn.branch(1), drawn.branch(2));
/// assert_eq!(line.branch(1), line.branch(2));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) max_tokens: usize,
    pub(crate) sampler: Sampler,
    pub(crate) stop_texts: Vec<String>,
    pub(crate) exact: bool,
}

impl Plan {
    /// The best token each time, at most so many, until the model ends the text.
    pub fn new(max_tokens: usize) -> Plan {
        Plan { max_tokens, sampler: Sampler::Greedy, stop_texts: Vec::new(), exact: false }
    }

    /// With `true`, exactly as many tokens as given, regardless of their text: neither the model's end of a
    /// text nor a text to stop at counts. For measurements, where lengths have to be equal.
    pub fn exact(mut self, exact: bool) -> Plan {
        self.exact = exact;
        self
    }

    /// Chooses tokens so.
    pub fn sampler(mut self, sampler: Sampler) -> Plan {
        self.sampler = sampler;
        self
    }

    /// Stops before this text, too.
    pub fn stop(mut self, text: impl Into<String>) -> Plan {
        self.stop_texts.push(text.into());
        self
    }

    /// At most so many tokens.
    pub fn max_tokens(mut self, count: usize) -> Plan {
        self.max_tokens = count;
        self
    }

    /// The same plan for one of several branches: where there is a seed, each number gives another.
    pub fn branch(&self, number: usize) -> Plan {
        let mut plan = self.clone();
        if let Sampler::Random(Sampling { seed: Some(seed), .. }) = &mut plan.sampler {
            // The golden ratio's odd multiple keeps neighbours' seeds far apart.
            *seed = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        plan
    }

    /// The texts that end it.
    pub(crate) fn stops(&self) -> &[String] {
        if self.exact {
            &[]
        } else {
            &self.stop_texts
        }
    }
}
