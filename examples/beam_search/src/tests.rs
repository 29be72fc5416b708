//! The search against a plain reference, which computes every text from its first token.

use super::*;
use symphony::json;
use symphony::testing::Host;

const EOS: u32 = 256;

/// A model of few words, in which ends are frequent.
fn logits(history: &[u32]) -> Vec<f32> {
    let seed = history.iter().fold(17u32, |h, t| h.wrapping_mul(31).wrapping_add(*t));
    let word = |t: u32| (seed ^ t.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b) >> 16;
    (0..257)
        .map(|t| match t {
            97..=106 => (word(t) % 1000) as f32 / 250.0,
            EOS => (word(t) % 1000) as f32 / 250.0 + 1.0,
            _ => -30.0,
        })
        .collect()
}

fn logprobs(history: &[u32]) -> Vec<f64> {
    let logits: Vec<f64> = logits(history).into_iter().map(f64::from).collect();
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.iter().map(|x| x - sum.ln()).collect()
}

/// The whole search by recomputation, to its last step.
fn reference(prompt: &[u32], beams: usize, max_tokens: usize, penalty: f64) -> Vec<Hypothesis> {
    let scored = |tokens: Vec<u32>, logprob: f64| {
        let score = logprob / (tokens.len() as f64).powf(penalty);
        Hypothesis { tokens, logprob, score }
    };
    let mut live: Vec<(Vec<u32>, f64)> = vec![(vec![], 0.0)];
    let mut done = vec![];
    for _ in 0..max_tokens {
        let mut grown = vec![];
        for (tokens, logprob) in &live {
            for (token, more) in logprobs(&[prompt, tokens].concat()).iter().enumerate() {
                grown.push(([&tokens[..], &[token as u32]].concat(), logprob + more));
            }
        }
        grown.sort_by(|a, b| b.1.total_cmp(&a.1));
        grown.truncate(2 * beams);
        let ends = grown.iter().take(beams).filter(|(tokens, _)| tokens.ends_with(&[EOS]));
        done.extend(ends.map(|(tokens, logprob)| scored(tokens.clone(), *logprob)));
        live = grown.into_iter().filter(|(tokens, _)| !tokens.ends_with(&[EOS])).collect();
        live.truncate(beams);
    }
    done.extend(live.into_iter().map(|(tokens, logprob)| scored(tokens, logprob)));
    done.sort_by(|a, b| b.score.total_cmp(&a.score));
    done.truncate(beams);
    done
}

#[test]
fn it_finds_what_the_plain_search_finds() {
    let mut ended = 0;
    for (beams, max_tokens, penalty) in [(1, 6, 1.0), (3, 5, 0.0), (4, 8, 1.0), (8, 6, 2.0)] {
        for prompt in ["a", "bc", "hello world"] {
            let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
            let search = Search {
                beams,
                max_tokens,
                length_penalty: penalty,
                vocab_size: 257,
                eos: vec![EOS],
            };
            let found =
                Host::new().model(logits).run(|| symphony::block_on(search.run(&tokens)).unwrap());
            let expected = reference(&tokens, beams, max_tokens, penalty);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.tokens, expected.tokens, "{} beams after {:?}", beams, prompt);
                assert!((found.score - expected.score).abs() < 1e-4);
            }
            ended += found.iter().filter(|h| h.tokens.ends_with(&[EOS])).count();
        }
    }
    assert!(ended > 10, "too few texts ended to test that: {}", ended);
}

#[test]
fn every_step_is_one_batch_and_nothing_stays_open() {
    let input = r#"{"prompt": "ab", "beams": 4, "max_tokens": 5, "length_penalty": 0.5}"#;
    let program = || symphony::block_on(run(Input::read().unwrap()));
    let (outcome, seen) = Host::new().input(input).observe(program);
    outcome.unwrap().unwrap();
    assert_eq!(seen.passes_per_wait, [1, 1, 4, 4, 4, 4]);
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    let sent = json::decode(&seen.sent[0]).unwrap();
    assert_eq!(sent.get("beams").unwrap().as_array().unwrap().len(), 4);
}
