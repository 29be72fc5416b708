//! Marks what it writes, so that the holder of the secret can tell it from other texts; and tells.

mod green;

use green::{Secret, WIDTH};
use std::error::Error;
use symphony::{json, model, process, try_join_all, KvFile, Sampling, Value};

#[symphony::main]
async fn run() -> Result<(), Box<dyn Error>> {
    let input = process::input_json()?;
    let text = |key| input.get(key).and_then(Value::as_str);
    let secret = Secret::new(text("secret").ok_or("the input needs a secret")?);
    if let Some(given) = text("text") {
        return Ok(process::send(format!("{{{}}}", evidence(&secret, given)?))?);
    }
    let prompt = model::tokenize(text("prompt").ok_or("the input needs a prompt or a text")?)?;
    let (last, before) = prompt.split_last().ok_or("the prompt is empty")?;
    let kv = KvFile::create()?;
    if !before.is_empty() {
        kv.prefill(before).await?;
    }
    let info = model::info()?;
    let writer = Writer {
        secret,
        sampling: Sampling::new()
            .temperature(input.get("temperature").and_then(Value::as_f64).unwrap_or(1.0) as f32)
            .seed(input.get("seed").and_then(Value::as_u64)),
        max_tokens: input.get("max_tokens").and_then(Value::as_u32).unwrap_or(200) as usize,
        vocab_size: info.vocab_size,
        eos: info.eos,
    };
    let deltas = input.get("deltas").and_then(Value::as_array).unwrap_or(&[Value::Float(2.0)]);
    let deltas: Option<Vec<f64>> = deltas.iter().map(Value::as_f64).collect();
    let deltas = deltas.ok_or("deltas are numbers")?;
    let texts = deltas.iter().map(|delta| writer.write(&kv, before, *last, *delta));
    for (delta, text) in deltas.iter().zip(try_join_all(texts).await?) {
        let told = evidence(&writer.secret, &text)?;
        let text = json::quote(&text);
        process::send(format!(r#"{{"delta": {}, "text": {}, {}}}"#, number(*delta), text, told))?;
    }
    Ok(())
}

/// What a reader who has the text alone, and the secret, can say about it.
fn evidence(secret: &Secret, text: &str) -> symphony::Result<String> {
    let found = secret.look_at(&model::tokenize(text)?);
    Ok(format!(
        r#""counted": {}, "green": {}, "z": {}, "p": {}"#,
        found.counted,
        found.green,
        number(found.z()),
        number(found.p())
    ))
}

/// Six digits and an exponent. Formatting floats in general would add a fifth to the module.
fn number(x: f64) -> String {
    if x.abs() < 1e-300 {
        return "0".into();
    }
    let exponent = x.abs().log10().floor() as i32;
    let digits = (x.abs() / 10f64.powi(exponent) * 1e5 + 0.5) as u32;
    let sign = if x < 0.0 { "-" } else { "" };
    format!("{}{}.{:05}e{}", sign, digits / 100_000, digits % 100_000, exponent)
}

struct Writer {
    secret: Secret,
    sampling: Sampling,
    max_tokens: usize,
    vocab_size: u32,
    eos: Vec<u32>,
}

impl Writer {
    /// Continues a prompt whose beginning is in `kv`; `delta` is added to each green token's logit.
    async fn write(
        &self,
        kv: &KvFile,
        before: &[u32],
        last: u32,
        delta: f64,
    ) -> symphony::Result<String> {
        let kv = kv.fork()?;
        let mut tokens = [before, &[last]].concat();
        while tokens.len() <= before.len() + self.max_tokens {
            let (context, next) =
                (&tokens[tokens.len().saturating_sub(WIDTH)..], &tokens[tokens.len() - 1..]);
            let green = self.secret.green_after(context, self.vocab_size);
            let drawn =
                kv.pred(next).bias_mask(&green, delta as f32).sample(&self.sampling).await?;
            if self.eos.contains(&drawn.token) {
                break;
            }
            tokens.push(drawn.token);
        }
        let text = model::detokenize(&tokens[before.len() + 1..])?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};

    fn play(input: &str) -> Seen {
        let (outcome, seen) = Host::new().input(input).observe(|| symphony::block_on(run()));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        seen
    }

    fn told(message: &[u8], key: &str) -> f64 {
        json::decode(message).unwrap().get(key).and_then(Value::as_f64).unwrap()
    }

    /// Beyond ASCII a byte alone is no text, so the host's model shall prefer what is.
    fn ascii(history: &[u32]) -> Vec<f32> {
        let seed = history.iter().rev().take(3).fold(17u32, |h, t| h.wrapping_mul(31) ^ *t);
        let word = |t: u32| (seed ^ t.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b) >> 16;
        (0..257).map(|t| if t < 128 { (word(t) % 1000) as f32 / 400.0 } else { -1e9 }).collect()
    }

    #[test]
    fn a_marked_text_is_told_from_an_unmarked_one() {
        let input =
            r#"{"prompt": "abc", "secret": "s", "deltas": [2, 0], "max_tokens": 200, "seed": 3}"#;
        let program = || symphony::block_on(run());
        let (outcome, seen) = Host::new().input(input).model(ascii).observe(program);
        outcome.unwrap().unwrap();
        let (marked, plain) = (&seen.sent[0], &seen.sent[1]);
        assert!(told(marked, "p") < 1e-9, "{}", String::from_utf8_lossy(marked));
        assert!(told(plain, "p") > 0.001, "{}", String::from_utf8_lossy(plain));
        assert!(told(marked, "counted") >= 190.0);
        assert_eq!(seen.passes_per_wait[1..], [2; 200], "both are one batch a step");

        // The holder of text and secret sees the same; with another secret there is nothing.
        let decoded = json::decode(marked).unwrap();
        let text = json::quote(decoded.get("text").and_then(Value::as_str).unwrap());
        let again = play(&format!(r#"{{"secret": "s", "text": {}}}"#, text));
        for key in ["counted", "green", "z", "p"] {
            assert_eq!(told(&again.sent[0], key), told(marked, key));
        }
        let wrong = play(&format!(r#"{{"secret": "t", "text": {}}}"#, text));
        assert!(told(&wrong.sent[0], "p") > 0.001);
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!([number(2.0), number(-1.234_567_8)], ["2.00000e0", "-1.23457e0"]);
        assert_eq!([number(3.2e-14), number(0.0)], ["3.20000e-14", "0"]);
    }

    #[test]
    fn a_wrong_input_is_told_so() {
        for (input, words) in [
            (r#"{"prompt": "a"}"#, "needs a secret"),
            (r#"{"secret": "s"}"#, "needs a prompt or a text"),
            (r#"{"secret": "s", "prompt": ""}"#, "prompt is empty"),
            (r#"{"secret": "s", "prompt": "a", "deltas": ["b"]}"#, "deltas are numbers"),
        ] {
            let error = Host::new().input(input).run(|| symphony::block_on(run())).unwrap_err();
            assert!(error.to_string().contains(words), "{}", error);
        }
    }
}
