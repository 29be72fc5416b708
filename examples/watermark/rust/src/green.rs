//! Green lists keyed by a secret, and the test for a text that was steered towards them
//! (Kirchenbauer et al., "A Watermark for Large Language Models", arXiv 2301.10226).

use std::f64::consts::LN_2;
use symphony::pred::TokenSet;

/// How many tokens before a place choose its green list. One would let the few commonest pairs of a
/// language, green by accident, mark all texts.
pub const WIDTH: usize = 2;

/// Who has the secret can mark texts, and tell that they are marked.
pub struct Secret {
    key: (u64, u64),
}

/// How many of a text's places were looked at, and how many of those hold a green token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    pub counted: u32,
    pub green: u32,
}

impl Secret {
    pub fn new(text: &str) -> Secret {
        let words: Vec<u64> = text.as_bytes().chunks(8).map(word).collect();
        let words = [&[text.len() as u64], &words[..]].concat();
        Secret { key: (sip_hash((0, 0), &words), sip_hash((0, 1), &words)) }
    }

    /// Half of the vocabulary: each token is green by the toss of a coin that only `context` (the
    /// last `WIDTH` tokens) and the secret decide.
    pub fn green_after(&self, context: &[u32], vocab_size: u32) -> TokenSet {
        let list = self.list(context);
        let words = (vocab_size as usize + 63) / 64;
        let mut bits: Vec<u8> =
            (0..words).flat_map(|block| self.coins(list, block as u64).to_le_bytes()).collect();
        bits.truncate((vocab_size as usize + 7) / 8);
        TokenSet::from_bytes(bits)
    }

    fn is_green(&self, context: &[u32], token: u32) -> bool {
        self.coins(self.list(context), u64::from(token / 64)) >> (token % 64) & 1 == 1
    }

    fn list(&self, context: &[u32]) -> u64 {
        let words: Vec<u64> = context.iter().map(|token| u64::from(*token)).collect();
        sip_hash(self.key, &words)
    }

    /// The colours of 64 tokens.
    fn coins(&self, list: u64, block: u64) -> u64 {
        sip_hash(self.key, &[list, block])
    }

    /// What a text says for its being marked. The same few tokens in a row count once: their colours
    /// are one toss, however often a text repeats them.
    pub fn look_at(&self, tokens: &[u32]) -> Evidence {
        let mut distinct: Vec<&[u32]> = tokens.windows(WIDTH + 1).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let green = distinct.iter().filter(|gram| self.is_green(&gram[..WIDTH], gram[WIDTH]));
        Evidence { counted: distinct.len() as u32, green: green.count() as u32 }
    }
}

impl Evidence {
    /// By how many standard deviations there are more green tokens than in a text that knows
    /// nothing of the secret.
    pub fn z(&self) -> f64 {
        let (n, green) = (f64::from(self.counted.max(1)), f64::from(self.green));
        (green - f64::from(self.counted) / 2.0) / (n / 4.0).sqrt()
    }

    /// How likely a text that knows nothing of the secret has as many green tokens or more: the
    /// binomial distribution's tail, exactly, where z has only its normal approximation.
    pub fn p(&self) -> f64 {
        if self.green == 0 {
            1.0
        } else if 2 * self.green < self.counted {
            1.0 - tail(self.counted, self.counted - self.green + 1)
        } else {
            tail(self.counted, self.green)
        }
    }
}

/// The chance of `green` or more heads in `n` tosses, for more heads than tails.
fn tail(n: u32, green: u32) -> f64 {
    let ratio = |above: u32, below: u32| f64::from(above) / f64::from(below);
    let first: f64 = (1..=green).map(|i| ratio(n - green + i, i).ln()).sum();
    let (mut term, mut sum) = (1.0, 0.0);
    for heads in green..=n {
        sum += term;
        term *= ratio(n - heads, heads + 1);
    }
    (first - f64::from(n) * LN_2 + sum.ln()).exp().min(1.0)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// SipHash-2-4 of whole words (Aumasson and Bernstein, 2012): without the key nothing can be said of
/// a list from others.
fn sip_hash(key: (u64, u64), words: &[u64]) -> u64 {
    let mut v = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    for word in words.iter().copied().chain([(words.len() as u64) << 59]) {
        v[3] ^= word;
        mix(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    mix(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn mix(v: &mut [u64; 4], rounds: usize) {
    for _ in 0..rounds {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
        v[2] = v[2].wrapping_add(v[1]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash() {
        let key = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(sip_hash(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(sip_hash(key, &[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn lists_are_half_of_the_vocabulary_and_everybody_s_own() {
        let (one, other) = (Secret::new("one"), Secret::new("other"));
        let list = one.green_after(&[1, 2], 4096);
        let greens = (0..4096).filter(|token| list.contains(*token)).count();
        assert!((1900..2200).contains(&greens), "{}", greens);
        assert!((0..4096).all(|token| list.contains(token) == one.is_green(&[1, 2], token)));
        for another in [one.green_after(&[2, 1], 4096), other.green_after(&[1, 2], 4096)] {
            let same = (0..4096).filter(|t| list.contains(*t) == another.contains(*t)).count();
            assert!((1900..2200).contains(&same), "{}", same);
        }
        assert_eq!(one.green_after(&[1, 2], 257).as_bytes().len(), 33);
    }

    #[test]
    fn repetitions_are_no_evidence() {
        let secret = Secret::new("secret");
        let once = secret.look_at(&[1, 2, 3, 4, 1, 2]);
        assert_eq!(once.counted, 4);
        assert_eq!(secret.look_at(&[1, 2, 3, 4].repeat(50)), once);
        assert_eq!(secret.look_at(&[1, 2]), Evidence { counted: 0, green: 0 });
    }

    #[test]
    fn chances_are_the_binomial_distribution_s() {
        let of = |counted, green| Evidence { counted, green };
        assert!((of(3, 2).p() - 0.5).abs() < 1e-12);
        assert!((of(10, 10).p() - 0.5f64.powi(10)).abs() < 1e-15);
        assert!((of(10, 0).p() - 1.0).abs() < 1e-12);
        assert!((of(4, 1).p() - 15.0 / 16.0).abs() < 1e-12);
        assert!((of(100, 70).p() / 3.925_069_822_796_835e-5 - 1.0).abs() < 1e-9);
        assert!((of(5000, 1000).p() - 1.0).abs() < 1e-12);
        assert!(of(5000, 4000).p() < 1e-300);
        assert_eq!((of(100, 70).z(), of(0, 0).z(), of(0, 0).p()), (4.0, 0.0, 1.0));
    }
}
