//! Forward passes.

use crate::constraint::Constraint;
use crate::error::filled;
use crate::executor::{Operand, Origin, Ticket};
use crate::kv::KvFile;
use crate::msgpack::Writer;
use crate::raw;
use crate::sampling::{write_bias, write_repetition, Sampling};
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its natural logarithm of probability, 0 or less.
    pub logprob: f32,
}

/// A chosen token, and the best ones of the distribution that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The chosen token.
    pub choice: Choice,
    /// As many of the most likely tokens as were asked for, best first: before temperature and
    /// truncation, as `choice.logprob` is.
    pub best: Vec<Choice>,
}

/// A set of tokens, for `allowed_tokens`, `bias_mask` and `repetition_penalty` of [`Pred`] and
/// [`Sampling`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    bits: Vec<u8>,
}

impl TokenSet {
    /// No token of a vocabulary of this size.
    pub fn none(vocab_size: u32) -> TokenSet {
        TokenSet { bits: alloc::vec![0; (vocab_size as usize + 7) / 8] }
    }

    /// The set of the tokens whose bits are set: bit t%8 of byte t/8, a bit for each token.
    pub fn from_bytes(bits: Vec<u8>) -> TokenSet {
        TokenSet { bits }
    }

    /// Puts a token in. Tokens beyond the vocabulary are left out.
    pub fn insert(&mut self, token: u32) {
        if let Some(byte) = self.bits.get_mut(token as usize / 8) {
            *byte |= 1 << (token % 8);
        }
    }

    /// Whether a token is in it.
    pub fn contains(&self, token: u32) -> bool {
        self.bits.get(token as usize / 8).map_or(false, |byte| byte >> (token % 8) & 1 == 1)
    }

    /// The mask as the server takes it: bit t%8 of byte t/8 is token t's.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }
}

// --- One place, or several -----------------------------------------------------------------------

/// A pass whose result is for its last token alone.
#[derive(Debug)]
pub enum One {}

/// A pass whose result is a list, one for each place asked for.
#[derive(Debug)]
pub enum Many {}

/// The type of a pass's result, where each place has a `T`: `T` itself or a `Vec<T>`.
pub trait Places<T> {
    /// The type.
    type Output;

    /// Puts the places' results together.
    fn gather(places: Vec<T>) -> Option<Self::Output>;
}

impl<T> Places<T> for One {
    type Output = T;

    fn gather(mut places: Vec<T>) -> Option<T> {
        places.pop()
    }
}

impl<T> Places<T> for Many {
    type Output = Vec<T>;

    fn gather(places: Vec<T>) -> Option<Vec<T>> {
        Some(places)
    }
}

/// Bytes for a result that is waited for at once: what is longer takes a second call.
const RESULT_ROOM: usize = 64;

#[derive(Clone, Copy)]
enum At<'a> {
    Last,
    All,
    Indices(&'a [u32]),
}

// --- The pass ------------------------------------------------------------------------------------

/// A forward pass in the making: [`KvFile::pred`] begins it, options refine it, and what is wanted of
/// it ([`argmax`](Pred::argmax), [`sample`](Pred::sample), [`top`](Pred::top), [`of`](Pred::of),
/// [`logits`](Pred::logits), [`hidden`](Pred::hidden) or [`prefill`](Pred::prefill)) starts it.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// # use symphony::{model, KvFile};
/// # let kv = KvFile::create()?;
/// let tokens = model::tokenize("for i in")?;
/// // How likely is each token after the one before it?
/// let next = kv.pred(&tokens).all().of(&tokens).await?;
/// let likely: f32 = (1..tokens.len()).map(|i| next[i - 1][i]).sum();
/// assert!(likely < 0.0);
/// // The five best continuations, without appending anything.
/// let best = kv.pred(&model::tokenize(" range")?).keep(false).top(5).await?;
/// assert_eq!(best.len(), 5);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[must_use = "a pass starts when its result is asked for, such as by argmax()"]
pub struct Pred<'a, P = One> {
    kv: &'a KvFile,
    tokens: &'a [u32],
    positions: Option<&'a [u32]>,
    at: At<'a>,
    bias: &'a [(u32, f32)],
    bias_mask: Option<(&'a TokenSet, f32)>,
    repetition: Option<(&'a TokenSet, f32)>,
    allow: Option<&'a TokenSet>,
    constraint: Option<(&'a Constraint, Option<u32>)>,
    parents: Option<&'a [i32]>,
    keep: bool,
    share: bool,
    adapter: &'a str,
    logprobs: u32,
    blocking: bool,
    places: PhantomData<P>,
}

impl<'a> Pred<'a> {
    pub(crate) fn new(kv: &'a KvFile, tokens: &'a [u32]) -> Pred<'a> {
        Pred {
            kv,
            tokens,
            positions: None,
            at: At::Last,
            bias: &[],
            bias_mask: None,
            repetition: None,
            allow: None,
            constraint: None,
            parents: None,
            keep: true,
            share: false,
            adapter: "",
            logprobs: 0,
            blocking: false,
            places: PhantomData,
        }
    }

    /// Wants a result for every token.
    pub fn all(self) -> Pred<'a, Many> {
        self.placed(At::All)
    }

    /// Wants results for the tokens with these indices.
    pub fn at(self, indices: &'a [u32]) -> Pred<'a, Many> {
        self.placed(At::Indices(indices))
    }

    fn placed(self, at: At<'a>) -> Pred<'a, Many> {
        Pred {
            kv: self.kv,
            tokens: self.tokens,
            positions: self.positions,
            at,
            bias: self.bias,
            bias_mask: self.bias_mask,
            repetition: self.repetition,
            allow: self.allow,
            constraint: self.constraint,
            parents: self.parents,
            keep: self.keep,
            share: self.share,
            adapter: self.adapter,
            logprobs: self.logprobs,
            blocking: self.blocking,
            places: PhantomData,
        }
    }
}

impl<'a, P> Pred<'a, P> {
    /// The tokens' positions, one each; otherwise they continue at the file's length.
    ///
    /// # Panics
    /// When there are not as many as tokens.
    pub fn positions(mut self, positions: &'a [u32]) -> Self {
        assert_eq!(positions.len(), self.tokens.len(), "a position for each token");
        self.positions = Some(positions);
        self
    }

    /// Adds finite numbers to the logits of these tokens; `allowed_tokens` rules others out.
    pub fn logit_bias(mut self, bias: &'a [(u32, f32)]) -> Self {
        self.bias = bias;
        self
    }

    /// Adds a finite number to the logits of all these tokens, beside what `logit_bias` adds.
    pub fn bias_mask(mut self, tokens: &'a TokenSet, value: f32) -> Self {
        self.bias_mask = Some((tokens, value));
        self
    }

    /// Divides the positive logits of these tokens by a penalty from 0.001 to 1000, and multiplies
    /// their other logits by it, before anything is added: above 1 they become less likely.
    pub fn repetition_penalty(mut self, tokens: &'a TokenSet, penalty: f32) -> Self {
        self.repetition = Some((tokens, penalty));
        self
    }

    /// Leaves only these tokens possible.
    pub fn allowed_tokens(mut self, tokens: &'a TokenSet) -> Self {
        self.allow = Some(tokens);
        self
    }

    /// Leaves only tokens possible that go on with a text of the constraint's. The text begins behind
    /// the first pass in this file that has the constraint; it is `EINVAL` where the tokens behind
    /// that are none, and with [`all`](Self::all), [`at`](Self::at) and [`parents`](Self::parents).
    pub fn constraint(mut self, constraint: &'a Constraint) -> Self {
        self.constraint = Some((constraint, None));
        self
    }

    /// The same, where the text begins with this entry of the file, from now on.
    pub fn constraint_since(mut self, constraint: &'a Constraint, since: u32) -> Self {
        self.constraint = Some((constraint, Some(since)));
        self
    }

    /// Makes the tokens a tree: each one's parent is an earlier one, by index, or -1 for the file's
    /// end. One pass then scores many continuations.
    ///
    /// # Panics
    /// When there are not as many as tokens.
    pub fn parents(mut self, parents: &'a [i32]) -> Self {
        assert_eq!(parents.len(), self.tokens.len(), "a parent for each token");
        self.parents = Some(parents);
        self
    }

    /// With `false`, computes without appending.
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// With `true`, computes once what several passes of the tenant begin with, also when they come
    /// together; the result is the same. `EINVAL` with [`all`](Self::all), [`at`](Self::at),
    /// [`parents`](Self::parents) and without [`keep`](Self::keep).
    pub fn share(mut self, share: bool) -> Self {
        self.share = share;
        self
    }

    /// Computes with one of the tenant's LoRA adapters, by its name; `ENOENT` where there is none.
    /// Entries that it computes are the adapter's: what other passes share does not match them.
    pub fn adapter(mut self, name: &'a str) -> Self {
        self.adapter = name;
        self
    }

    /// Waits for the result where it is asked for, within one call: the ticket is ready then. For
    /// programs that do one thing after the other, such as a loop that decodes a token at a time;
    /// other tasks of the program stand still meanwhile.
    ///
    /// ```
    /// # symphony::testing::Host::new().run(|| symphony::block_on(async {
    /// # let kv = symphony::KvFile::create()?;
    /// let mut token = 7;
    /// for _ in 0..3 {
    ///     token = kv.pred(&[token]).blocking().argmax().await?.token;
    /// }
    /// # symphony::Result::Ok(()) }).unwrap());
    /// ```
    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// Starts it, for the file's sake: nothing is asked but that the tokens are appended.
    #[track_caller]
    pub fn prefill(self) -> Ticket<()> {
        let options = self.options(Some(&|out| {
            out.str("get").str("none");
        }));
        self.start(&options, |bytes, _| bytes.is_empty().then_some(()))
    }

    /// Starts it; the best token.
    #[track_caller]
    pub fn argmax(self) -> Ticket<P::Output>
    where
        P: Places<Choice>,
    {
        let options = self.options(None);
        self.start(&options, |bytes, _| P::gather(choices(bytes)?))
    }

    /// Starts it; a token chosen by `temperature`, `top_k`, `top_p`, `min_p` and `seed`. The other
    /// parameters are a text's, and a single pass has no use for them.
    #[track_caller]
    pub fn sample(self, sampling: &Sampling) -> Ticket<P::Output>
    where
        P: Places<Choice>,
    {
        let options = self.drawn(sampling);
        self.start(&options, |bytes, _| P::gather(choices(bytes)?))
    }

    /// Starts it; the best token, and the best `k`, at most 20, beside it.
    #[track_caller]
    pub fn argmax_scored(mut self, k: u32) -> Ticket<P::Output>
    where
        P: Places<Scored>,
    {
        self.logprobs = k;
        let options = self.options(None);
        self.start(&options, |bytes, places| P::gather(split(bytes, places, scored)?))
    }

    /// Starts it; a token drawn at random, and the best `k`, at most 20, beside it.
    #[track_caller]
    pub fn sample_scored(mut self, sampling: &Sampling, k: u32) -> Ticket<P::Output>
    where
        P: Places<Scored>,
    {
        self.logprobs = k;
        let options = self.drawn(sampling);
        self.start(&options, |bytes, places| P::gather(split(bytes, places, scored)?))
    }

    /// Starts it; the best `k` tokens, best first.
    #[track_caller]
    pub fn top(self, k: u32) -> Ticket<P::Output>
    where
        P: Places<Vec<Choice>>,
    {
        let options = self.options(Some(&|out| {
            out.str("get").map(1).str("top").uint(u64::from(k));
        }));
        self.start(&options, |bytes, places| P::gather(split(bytes, places, choices)?))
    }

    /// Starts it; the log-probability of each of these tokens.
    #[track_caller]
    pub fn of(self, tokens: &[u32]) -> Ticket<P::Output>
    where
        P: Places<Vec<f32>>,
    {
        let options = self.options(Some(&|out| {
            out.str("get").map(1).str("of").array(tokens.len());
            tokens.iter().fold(out, |out, token| out.uint(u64::from(*token)));
        }));
        self.start(&options, |bytes, places| P::gather(split(bytes, places, floats)?))
    }

    /// Starts it; the whole vocabulary's logits.
    #[track_caller]
    pub fn logits(self) -> Ticket<P::Output>
    where
        P: Places<Vec<f32>>,
    {
        let options = self.options(Some(&|out| {
            out.str("get").str("logits");
        }));
        self.start(&options, |bytes, places| P::gather(split(bytes, places, floats)?))
    }

    /// Starts it; the last hidden state after the final norm, `model::info()?.hidden_size` numbers. It
    /// has no distribution: with a bias, a penalty, allowed tokens or a constraint it is `EINVAL`.
    ///
    /// ```
    /// # symphony::testing::Host::new().run(|| symphony::block_on(async {
    /// # use symphony::{model, KvFile};
    /// # let kv = KvFile::create()?;
    /// let states = kv.pred(&model::tokenize("hi")?).all().hidden().await?;
    /// assert_eq!((states.len(), states[0].len()), (2, model::info()?.hidden_size as usize));
    /// # symphony::Result::Ok(()) }).unwrap());
    /// ```
    #[track_caller]
    pub fn hidden(self) -> Ticket<P::Output>
    where
        P: Places<Vec<f32>>,
    {
        let options = self.options(Some(&|out| {
            out.str("get").str("hidden");
        }));
        self.start(&options, |bytes, places| P::gather(split(bytes, places, floats)?))
    }

    fn drawn(&self, sampling: &Sampling) -> Vec<u8> {
        if !sampling.draws() {
            return self.options(None);
        }
        self.options(Some(&|out| sampling.write_get(out)))
    }

    /// The options in MessagePack; nothing at all where they are the defaults.
    fn options(&self, get: Option<&dyn Fn(&mut Writer)>) -> Vec<u8> {
        let placed = !matches!(self.at, At::Last);
        let given = [
            placed,
            get.is_some(),
            !self.bias.is_empty(),
            self.bias_mask.is_some(),
            self.repetition.is_some(),
            self.allow.is_some(),
            self.constraint.is_some(),
            matches!(self.constraint, Some((_, Some(_)))),
            self.parents.is_some(),
            !self.keep,
            self.share,
            !self.adapter.is_empty(),
            self.logprobs > 0,
        ];
        let count = given.iter().filter(|given| **given).count();
        let mut out = Writer::new();
        if count == 0 {
            return out.into_bytes();
        }
        out.map(count);
        match self.at {
            At::Last => {}
            At::All => {
                out.str("at").str("all");
            }
            At::Indices(indices) => {
                out.str("at").array(indices.len());
                indices.iter().fold(&mut out, |out, index| out.uint(u64::from(*index)));
            }
        }
        if let Some(get) = get {
            get(&mut out);
        }
        self.write_rest(&mut out);
        out.into_bytes()
    }

    fn write_rest(&self, out: &mut Writer) {
        write_bias(out, self.bias, self.bias_mask, self.allow);
        if let Some((tokens, penalty)) = self.repetition {
            write_repetition(out, tokens, penalty);
        }
        if let Some((constraint, since)) = self.constraint {
            constraint.write(since, out);
        }
        if let Some(parents) = self.parents {
            out.str("parents").array(parents.len());
            parents.iter().fold(&mut *out, |out, parent| out.int(i64::from(*parent)));
        }
        if !self.keep {
            out.str("keep").bool(false);
        }
        if self.share {
            out.str("share").bool(true);
        }
        if !self.adapter.is_empty() {
            out.str("adapter").str(self.adapter);
        }
        if self.logprobs > 0 {
            out.str("logprobs").uint(u64::from(self.logprobs));
        }
    }

    #[track_caller]
    fn start<T>(&self, options: &[u8], decode: fn(&[u8], usize) -> Option<T>) -> Ticket<T> {
        let places = match self.at {
            At::Last => 1,
            At::All => self.tokens.len(),
            At::Indices(indices) => indices.len(),
        };
        let positions = self.positions.map_or(core::ptr::null(), <[u32]>::as_ptr);
        let (kv, tokens) = (self.kv.handle(), (self.tokens.as_ptr(), self.tokens.len()));
        let opts = (options.as_ptr(), options.len());
        let largest = self.tokens.iter().copied().max().unwrap_or(0);
        let origin = Origin::new("pred", Operand::Tokens { count: tokens.1, largest });
        if self.blocking {
            let given = filled("pred", RESULT_ROOM, |ptr, cap| unsafe {
                raw::pred_claim(kv, tokens.0, tokens.1, positions, opts.0, opts.1, ptr, cap)
            });
            return Ticket::given(origin, given.map_err(|error| error.errno), decode, places);
        }
        let result = unsafe { raw::pred(kv, tokens.0, tokens.1, positions, opts.0, opts.1) };
        Ticket::of(origin, result, decode, places)
    }
}

impl<P> fmt::Debug for Pred<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pred({} tokens)", self.tokens.len())
    }
}

// --- Results -------------------------------------------------------------------------------------

fn word(bytes: &[u8]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

pub(crate) fn choices(bytes: &[u8]) -> Option<Vec<Choice>> {
    let choice = |pair: &[u8]| Choice {
        token: u32::from_le_bytes(word(pair)),
        logprob: f32::from_le_bytes(word(&pair[4..])),
    };
    (bytes.len() % 8 == 0).then(|| bytes.chunks_exact(8).map(choice).collect())
}

/// A record: a chosen token, and the best ones behind it.
pub(crate) fn scored(bytes: &[u8]) -> Option<Scored> {
    let mut all = choices(bytes)?;
    (!all.is_empty()).then(|| Scored { choice: all.remove(0), best: all })
}

fn floats(bytes: &[u8]) -> Option<Vec<f32>> {
    let float = |bytes| f32::from_le_bytes(word(bytes));
    (bytes.len() % 4 == 0).then(|| bytes.chunks_exact(4).map(float).collect())
}

/// The results of the places, all of the same size.
fn split<T>(bytes: &[u8], places: usize, read: fn(&[u8]) -> Option<T>) -> Option<Vec<T>> {
    if places == 0 || bytes.is_empty() || bytes.len() % places != 0 {
        return (places == 0 && bytes.is_empty()).then(Vec::new);
    }
    bytes.chunks_exact(bytes.len() / places).map(read).collect()
}
