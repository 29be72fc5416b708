//! Forward passes of the host's byte model.

use super::constraints::Text;
use super::{World, VOCAB_SIZE};
use crate::msgpack;
use crate::value::Value;
use crate::Errno;
use std::vec::Vec;

/// Numbers of a hidden state, which are the first logits here.
pub(super) const HIDDEN_SIZE: usize = 16;

/// Logits that depend on the last three tokens; the end of the text is possible and not likely.
pub(super) fn babble(history: &[u32]) -> Vec<f32> {
    let seed = history.iter().rev().take(3).fold(7, |h, token| mix(h ^ u64::from(*token)));
    let mut logits: Vec<f32> = (0..VOCAB_SIZE).map(|t| 8.0 * unit(seed ^ u64::from(t))).collect();
    logits[VOCAB_SIZE as usize - 1] -= 4.0;
    logits
}

/// A permutation of 64 bits without pattern (the finaliser of splitmix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A number from 0 to 1, without 1.
fn unit(x: u64) -> f32 {
    (mix(x) >> 40) as f32 / (1u64 << 24) as f32
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|x| (x - max).exp()).sum();
    logits.iter().map(|x| x - max - sum.ln()).collect()
}

fn best_first(logprobs: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logprobs.len()).collect();
    order.sort_by(|a, b| logprobs[*b].total_cmp(&logprobs[*a]).then(a.cmp(b)));
    order
}

/// What a program has packed: nothing, or a map.
pub(super) fn options(packed: &[u8]) -> Result<Value, Errno> {
    match packed {
        [] => Ok(Value::Map(Vec::new())),
        bytes => msgpack::decode(bytes).map_err(|_| Errno::EINVAL),
    }
}

/// The result of one pass, and the tokens that the file has afterwards.
pub(super) fn run(
    world: &mut World,
    file: &[u32],
    tokens: &[u32],
    options: &Value,
    text: Option<&Text>,
) -> Result<(Vec<u8>, Vec<u32>), Errno> {
    for (key, _) in options.as_map().ok_or(Errno::EINVAL)? {
        match key.as_str() {
            Some(
                "at" | "get" | "bias" | "bias_mask" | "allow" | "parents" | "keep" | "logprobs"
                | "constraint" | "since" | "repetition" | "share",
            ) => {}
            // A test has no adapters.
            Some("adapter") => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
    }
    if tokens.is_empty() || tokens.iter().any(|token| *token >= VOCAB_SIZE) {
        return Err(Errno::EINVAL);
    }
    let hidden = options.get("get").and_then(Value::as_str) == Some("hidden");
    let changed = ["bias", "bias_mask", "repetition", "allow", "constraint", "logprobs"];
    if hidden && changed.iter().any(|key| options.get(key).is_some()) {
        return Err(Errno::EINVAL);
    }
    let histories = histories(file, tokens, options.get("parents"))?;
    let mut out = Vec::new();
    for place in places(options.get("at"), tokens.len())? {
        let mut logits = (world.model.clone())(&histories[place]);
        if hidden {
            logits[..HIDDEN_SIZE].iter().for_each(|x| out.extend(x.to_le_bytes()));
            continue;
        }
        adjust(&mut logits, options)?;
        if let Some(text) = text {
            text.rule_out(&mut logits, &histories[place])?;
        }
        answer(world, &mut out, options.get("get"), &logits, histories[place].len())?;
        tell_best(&mut out, options, &logits)?;
    }
    let keep = options.get("keep").and_then(Value::as_bool).unwrap_or(true);
    let kept = if keep { tokens } else { &[] };
    Ok((out, [file, kept].concat()))
}

/// For each token, all tokens that it sees, itself last.
fn histories(
    file: &[u32],
    tokens: &[u32],
    parents: Option<&Value>,
) -> Result<Vec<Vec<u32>>, Errno> {
    let chain: Vec<i64> = match parents.map(Value::as_array) {
        None => (-1..tokens.len() as i64 - 1).collect(),
        Some(parents) => parents.unwrap_or(&[]).iter().filter_map(Value::as_i64).collect(),
    };
    let valid = chain.iter().enumerate().all(|(i, parent)| -1 <= *parent && *parent < i as i64);
    if chain.len() != tokens.len() || !valid {
        return Err(Errno::EINVAL);
    }
    let mut all: Vec<Vec<u32>> = Vec::new();
    for (token, parent) in tokens.iter().zip(chain) {
        let mut history = usize::try_from(parent).map_or(file.to_vec(), |p| all[p].clone());
        history.push(*token);
        all.push(history);
    }
    Ok(all)
}

fn places(at: Option<&Value>, count: usize) -> Result<Vec<usize>, Errno> {
    let places: Vec<usize> = match at {
        None => [count - 1].into(),
        Some(at) if at.as_str() == Some("last") => [count - 1].into(),
        Some(at) if at.as_str() == Some("all") => (0..count).collect(),
        Some(at) => {
            let indices = at.as_array().ok_or(Errno::EINVAL)?;
            indices.iter().filter_map(|i| Some(i.as_u32()? as usize)).collect()
        }
    };
    if places.iter().any(|place| *place >= count) {
        return Err(Errno::EINVAL);
    }
    Ok(places)
}

fn adjust(logits: &mut [f32], options: &Value) -> Result<(), Errno> {
    if let Some(repeated) = options.get("repetition") {
        let mask = repeated.get("mask").and_then(Value::as_bytes).ok_or(Errno::EINVAL)?;
        let penalty = repeated.get("penalty").and_then(Value::as_f64).ok_or(Errno::EINVAL)? as f32;
        if mask.len() != (logits.len() + 7) / 8 || !(1e-3..=1e3).contains(&penalty) {
            return Err(Errno::EINVAL);
        }
        for (token, logit) in logits.iter_mut().enumerate() {
            if mask[token / 8] >> (token % 8) & 1 == 1 {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
    for (token, bias) in options.get("bias").and_then(Value::as_map).unwrap_or(&[]) {
        let token = token.as_u32().ok_or(Errno::EINVAL)? as usize;
        *logits.get_mut(token).ok_or(Errno::EINVAL)? += bias.as_f64().ok_or(Errno::EINVAL)? as f32;
    }
    if let Some(biased) = options.get("bias_mask") {
        let mask = biased.get("mask").and_then(Value::as_bytes).ok_or(Errno::EINVAL)?;
        let value = biased.get("value").and_then(Value::as_f64).ok_or(Errno::EINVAL)? as f32;
        if mask.len() != (logits.len() + 7) / 8 {
            return Err(Errno::EINVAL);
        }
        for (token, logit) in logits.iter_mut().enumerate() {
            *logit += f32::from(mask[token / 8] >> (token % 8) & 1) * value;
        }
    }
    if let Some(mask) = options.get("allow") {
        let mask = mask.as_bytes().ok_or(Errno::EINVAL)?;
        if mask.len() != (logits.len() + 7) / 8 {
            return Err(Errno::EINVAL);
        }
        for (token, logit) in logits.iter_mut().enumerate() {
            if mask[token / 8] >> (token % 8) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    Ok(())
}

fn answer(
    world: &mut World,
    out: &mut Vec<u8>,
    get: Option<&Value>,
    logits: &[f32],
    position: usize,
) -> Result<(), Errno> {
    let logprobs = log_softmax(logits);
    let mut choice = |token: usize| {
        out.extend((token as u32).to_le_bytes());
        out.extend(logprobs[token].to_le_bytes());
    };
    let order = best_first(&logprobs);
    let word = get.and_then(Value::as_str);
    let asked = get.and_then(Value::as_map).and_then(|pairs| pairs.first());
    match (word, asked) {
        (Some("none"), _) => {}
        (Some("argmax"), _) => choice(order[0]),
        (Some("logits"), _) => logits.iter().for_each(|x| out.extend(x.to_le_bytes())),
        (None, None) if get.is_none() => choice(order[0]),
        (None, Some((key, argument))) => match key.as_str() {
            Some("top") => {
                let k = argument.as_u32().ok_or(Errno::EINVAL)? as usize;
                order.iter().take(k).for_each(|token| choice(*token));
            }
            Some("of") => {
                for token in argument.as_array().ok_or(Errno::EINVAL)? {
                    let token = token.as_u32().ok_or(Errno::EINVAL)? as usize;
                    out.extend(logprobs.get(token).ok_or(Errno::EINVAL)?.to_le_bytes());
                }
            }
            Some("sample") => choice(sample(world, argument, &logprobs, position)?),
            _ => return Err(Errno::EINVAL),
        },
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// The best tokens beside a chosen one.
fn tell_best(out: &mut Vec<u8>, options: &Value, logits: &[f32]) -> Result<(), Errno> {
    let count = options.get("logprobs").map_or(Some(0), Value::as_u32).ok_or(Errno::EINVAL)?;
    let get = options.get("get");
    let chooses =
        get.map_or(true, |get| get.as_str() == Some("argmax") || get.get("sample").is_some());
    if count > 20 || (count > 0 && !chooses) {
        return Err(Errno::EINVAL);
    }
    let logprobs = log_softmax(logits);
    for token in best_first(&logprobs).into_iter().take(count as usize) {
        out.extend((token as u32).to_le_bytes());
        out.extend(logprobs[token].to_le_bytes());
    }
    Ok(())
}

fn sample(
    world: &mut World,
    sampling: &Value,
    logprobs: &[f32],
    position: usize,
) -> Result<usize, Errno> {
    let number = |key, default| sampling.get(key).and_then(Value::as_f64).unwrap_or(default);
    if number("top_k", 0.0) != 0.0 || number("top_p", 1.0) != 1.0 || number("min_p", 0.0) != 0.0 {
        return Err(Errno::ENOSYS);
    }
    let temperature = number("temperature", 1.0) as f32;
    if temperature <= 0.0 {
        return Ok(best_first(logprobs)[0]);
    }
    world.noise += 1;
    let seed = sampling.get("seed").and_then(Value::as_u64).unwrap_or(mix(world.noise));
    let scaled: Vec<f32> = logprobs.iter().map(|x| x / temperature).collect();
    let mut left = unit(mix(seed) ^ position as u64);
    for (token, logprob) in log_softmax(&scaled).iter().enumerate() {
        left -= logprob.exp();
        if left < 0.0 {
            return Ok(token);
        }
    }
    Ok(best_first(logprobs)[0])
}
