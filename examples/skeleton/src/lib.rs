//! Skeleton of thought: first the outline, a line for each point, then the bodies of all points side by
//! side, each from the whole outline, and put together in order.

use std::error::Error;
use symphony::json::{list, Object};
use symphony::prompt::fill;
use symphony::{process, Input, Session};

const PROMPT: &str = "class Record:\n    \"\"\"A record of a file.\n\n    Methods:\n";
const POINT: &str = "    def";
const BODY: &str = "    \"\"\"\n\n    def{title}\n        \"\"\"";

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let points = input.whole("points", 4, 1..=64)?;
    let line = input.sampling("point_tokens", 12)?.stop("\n");
    let sampling = input.sampling("tokens", 32)?;
    let (point, body) = (input.text_or("point", POINT)?, input.text_or("body", BODY)?);

    let mut outline = Session::new(input.text_or("prompt", PROMPT)?)?;
    let mut titles = Vec::new();
    for number in 0..points {
        outline.append(&fill(point, &[("number", &format!("{}", number + 1))]))?;
        titles.push(outline.reply(&line.branch(number)).await?.text);
        outline.append("\n")?;
    }
    let bodies = outline.fan_out(points, |number, mut session| {
        let values = [("number", &*format!("{}", number + 1)), ("title", &*titles[number])];
        let (words, sampling) = (fill(body, &values), sampling.branch(points + number));
        async move {
            session.append(&words)?;
            Ok((words, session.reply(&sampling).await?.text))
        }
    });

    let mut text = String::new();
    let mut reports = Vec::new();
    for (title, (words, body)) in titles.iter().zip(bodies.await?) {
        text.push_str(&words);
        text.push_str(&body);
        reports.push(Object::new().text("title", title).text("text", &body).finish());
    }
    let usage = outline.usage();
    let result = Object::new().text("text", &text).raw("points", &list(reports));
    let result = result.whole("generated", usage.generated).whole("prefilled", usage.prefilled);
    process::send(result.finish())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::testing::{Host, Seen};
    use symphony::{json, Value};

    /// Says the letter of the point it is at: in the outline twice and a line's end, else for ever.
    fn logits(history: &[u32]) -> Vec<f32> {
        let text: Vec<u8> = history.iter().map(|token| *token as u8).collect();
        let at = text.iter().rposition(|byte| byte.is_ascii_digit()).unwrap();
        let outline = !text.contains(&b'#');
        let next = if outline && text.len() - at > 2 { b'\n' } else { text[at] - b'1' + b'a' };
        let mut logits = vec![0.0; 257];
        logits[usize::from(next)] = 20.0;
        logits
    }

    fn write(more: &str) -> (Value, Seen) {
        let input = format!(
            r##"{{"prompt": "abc\n", "point": "{{number}}", "body": "#{{number}}{{title}}",
                "points": 3, "tokens": 4{}}}"##,
            more
        );
        let host = Host::new().input(input).model(logits);
        let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
        outcome.unwrap().unwrap();
        assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
        (json::decode(&seen.sent[0]).unwrap(), seen)
    }

    #[test]
    fn bodies_are_put_together_in_the_outline_s_order() {
        let (result, seen) = write("");
        assert_eq!(result.get("text").unwrap().as_str(), Some("#1aaaaaa#2bbbbbb#3cccccc"));
        let points = result.get("points").unwrap().as_array().unwrap();
        let titles: Vec<_> = points.iter().map(|p| p.get("title").unwrap().as_str()).collect();
        assert_eq!(titles, [Some("aa"), Some("bb"), Some("cc")]);
        // The bodies have no pass of their own for the outline, and every step computes all of them.
        assert_eq!(seen.passes_per_wait.iter().filter(|rows| **rows == 3).count(), 4);
    }

    #[test]
    fn lengths_can_be_fixed() {
        let (result, _) = write(r#", "ignore_eos": true, "point_tokens": 5"#);
        let count = |key| result.get(key).unwrap().as_u64().unwrap();
        assert_eq!(count("generated"), 3 * 5 + 3 * 4);
        // A point is its number, its tokens and a line's end; a body its words.
        assert_eq!(count("prefilled"), 4 + 3 * (1 + 1 + 1) - 1 + 3 * (1 + 1 + 1 + 5));
    }
}
