//! Drafts of an answer's next tokens: what followed the same tokens earlier in the prompt or the
//! answer (prompt lookup decoding). And an account of whether they pay.
//!
//! The account costs the device nothing while there are no drafts: each token of an answer says
//! whether the earlier text would have been right. Drafts begin once `needed` tokens in a row agree.
//! The time of a token with drafts and without decides whether `needed` grows.

#[cfg(test)]
mod tests;

/// So many tokens are looked up.
const MATCH: usize = 3;
/// More tokens than this never have to agree.
pub const NEEDED_MAX: usize = 64;
/// After so many passes with drafts they are judged.
const JUDGED_PASSES: usize = 8;
/// Tokens without drafts whose time is known before the first draft.
const TIMED_TOKENS: usize = 4;
/// Where no time is known: drafts pay if so many of 100 are accepted.
const ACCEPTED_PERCENT: usize = 50;
/// Drafts have to save so many percent of a token's time.
const SAVED_PERCENT: u64 = 5;
/// Older times count half once so many tokens have come.
const REMEMBERED_TOKENS: usize = 64;

/// Time and tokens, the recent ones more.
#[derive(Default)]
struct Pace {
    ms: u64,
    tokens: usize,
}

impl Pace {
    fn add(&mut self, ms: u64, tokens: usize) {
        self.ms += ms;
        self.tokens += tokens;
        if self.tokens > REMEMBERED_TOKENS {
            self.ms /= 2;
            self.tokens /= 2;
        }
    }
}

pub struct Drafts {
    /// Tokens of a draft at most.
    longest: usize,
    /// Tokens that may still be computed in vain.
    spare: usize,
    /// The prompt and the answer.
    text: Vec<u32>,
    /// Where the text behind the latest place of `MATCH` tokens begins, by their hash; 0: none.
    places: Vec<u32>,
    /// Where in the text it is written how the text continues; 0: nowhere.
    source: usize,
    /// How many tokens before that are the same as at the text's end.
    agreed: usize,
    /// How many have to be.
    needed: usize,
    /// Tokens of a draft that are usually right.
    usual: usize,
    plain: Pace,
    /// Of the passes with drafts since they were judged.
    tried: Pace,
    passes: usize,
    tried_drafted: usize,
    tried_accepted: usize,
    /// Of the whole answer.
    pub drafted: usize,
    pub accepted: usize,
}

impl Drafts {
    /// Drafts of at most `longest` tokens for what follows a prompt.
    pub fn new(prompt: &[u32], longest: usize, spare: usize, answer: usize) -> Drafts {
        let slots = (2 * (prompt.len() + answer.min(prompt.len() + 1024))).next_power_of_two();
        let mut drafts = Drafts {
            longest,
            spare,
            text: Vec::with_capacity(prompt.len() + 64),
            places: vec![0; slots],
            source: 0,
            agreed: 0,
            needed: MATCH,
            usual: MATCH,
            plain: Pace::default(),
            tried: Pace::default(),
            passes: 0,
            tried_drafted: 0,
            tried_accepted: 0,
            drafted: 0,
            accepted: 0,
        };
        prompt.iter().for_each(|token| drafts.push(*token));
        drafts
    }

    /// Adds the text's next token.
    pub fn push(&mut self, token: u32) {
        if self.source > 0 && self.text[self.source] == token {
            self.source += 1;
            self.agreed += 1;
        } else {
            self.source = 0;
            self.agreed = 0;
        }
        self.text.push(token);
        let end = self.text.len();
        if end < MATCH {
            return;
        }
        let slot = self.slot(end);
        let place = self.places[slot] as usize;
        self.places[slot] = end as u32;
        // The place that has agreed so far is the better one: more tokens are the same there.
        if self.source == 0 && place > 0 {
            let same = |back: &usize| self.text[place - 1 - back] == self.text[end - 1 - back];
            let agreed = (0..place.min(NEEDED_MAX)).take_while(same).count();
            if agreed >= MATCH {
                self.source = place;
                self.agreed = agreed;
            }
        }
    }

    /// The slot of the last tokens before `end`.
    fn slot(&self, end: usize) -> usize {
        let mix = |hash: u32, token: &u32| (hash ^ token).wrapping_mul(0x9e37_79b1).rotate_left(15);
        let hash = self.text[end - MATCH..end].iter().fold(0, mix);
        (hash ^ hash >> 16) as usize & (self.places.len() - 1)
    }

    /// The text's likely continuation, of at most `room` tokens; empty: drafts would not pay.
    pub fn draft(&self, room: usize) -> Vec<u32> {
        let timed = self.plain.tokens >= TIMED_TOKENS;
        if self.source == 0 || self.agreed < self.needed || !timed {
            return Vec::new();
        }
        // The longer the texts agree, the longer they will; as far as drafts were right lately.
        let likely = self.agreed.min(2 * self.usual + 1);
        let count = likely.min(self.longest).min(room).min(self.spare);
        let mut draft: Vec<u32> = Vec::with_capacity(count);
        for at in self.source..self.source + count {
            // A source that overlaps the text's end goes round.
            let next = self.text.get(at).copied();
            draft.push(next.unwrap_or_else(|| draft[at - self.text.len()]));
        }
        draft
    }

    /// Whether a place is known from which drafts may come soon.
    pub fn is_near(&self) -> bool {
        self.needed <= MATCH || self.source > 0 && self.agreed >= self.needed / 2
    }

    /// Counts tokens that came without drafts in so many milliseconds.
    pub fn count_plain(&mut self, ms: u64, tokens: usize) {
        self.plain.add(ms, tokens);
    }

    /// Counts a pass with a draft of which so many tokens were right, or none was made (0 and 0).
    /// `ms`: since the last pass, or since the tokens without drafts that it interrupted.
    pub fn count_pass(&mut self, ms: u64, drafted: usize, accepted: usize) {
        self.drafted += drafted;
        self.accepted += accepted;
        self.spare = self.spare.saturating_sub(drafted - accepted);
        self.tried.add(ms, accepted + 1);
        self.tried_drafted += drafted;
        self.tried_accepted += accepted;
        self.passes += 1;
        if drafted > 0 {
            self.usual = (self.usual + accepted + 1) / 2;
        }
        if self.passes >= JUDGED_PASSES {
            self.judge();
        }
    }

    /// Counts tokens that were computed and thrown away.
    pub fn count_wasted(&mut self, tokens: usize) {
        self.spare = self.spare.saturating_sub(tokens);
    }

    /// Lets drafts need more where they did not pay since the last time, and less where they did.
    pub fn judge(&mut self) {
        if self.tried_drafted == 0 {
            return;
        }
        if self.pays() {
            self.needed = MATCH.max(self.needed / 2);
        } else {
            self.needed = NEEDED_MAX.min(2 * self.needed);
        }
        self.tried = Pace::default();
        self.passes = 0;
        self.tried_drafted = 0;
        self.tried_accepted = 0;
    }

    fn pays(&self) -> bool {
        if self.plain.ms == 0 || self.tried.ms == 0 {
            return 100 * self.tried_accepted >= ACCEPTED_PERCENT * self.tried_drafted;
        }
        let with = 100 * self.tried.ms * self.plain.tokens as u64;
        let without = (100 - SAVED_PERCENT) * self.plain.ms * self.tried.tokens as u64;
        with <= without
    }
}
