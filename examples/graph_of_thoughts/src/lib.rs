//! Graph of thoughts: several thoughts grow from one text, the model judges each of them, the best are
//! merged into one KV file, from which the next thoughts grow, and in the end the answer.

use std::error::Error;
use symphony::json::{list, Object};
use symphony::prompt::fill;
use symphony::{process, Input, Session};

const PROMPT: &str = "\"\"\"Reads numbers from a file and adds them.\"\"\"\n\nimport sys\n";
const THOUGHT: &str = "\n\n# Way {number}.\ndef";
const JUDGE: &str = "\n\n# Is this right?\nok =";
const CONCLUSION: &str = "\n\n\n# All of it together.\ndef main";

/// A branch, and what the model thinks of it.
struct Thought {
    session: Session,
    text: String,
    number: usize,
    score: f64,
}

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let (levels, branches) =
        (input.whole("levels", 2, 1..=16)?, input.whole("branches", 4, 1..=64)?);
    let keep = input.whole("keep", 2, 1..=64)?;
    let sampling = input.sampling("tokens", 24)?;
    let words = input.text_or("thought", THOUGHT)?;
    let judge = input.text_or("judge", JUDGE)?;
    let (good, bad) = (input.text_or("good", " True")?, input.text_or("bad", " False")?);

    let mut base = Session::new(input.text_or("prompt", PROMPT)?)?;
    let mut reports = Vec::new();
    for level in 0..levels {
        let thoughts = base.fan_out(branches, |number, mut session| {
            let sampling = sampling.branch(level * branches + number);
            async move {
                session.append(&fill(words, &[("number", &format!("{}", number + 1))]))?;
                let text = session.reply(&sampling).await?.text;
                let score = session.log_odds(judge, good, bad).await?;
                Ok(Thought { session, text, number, score })
            }
        });
        let mut thoughts = thoughts.await?;
        thoughts.sort_by(|a, b| b.score.total_cmp(&a.score));
        reports.extend(thoughts.iter().enumerate().map(|(rank, thought)| {
            let report = Object::new().whole("level", level as u64).text("text", &thought.text);
            let report = report.whole("number", thought.number as u64).flag("kept", rank < keep);
            report.decimal("score", thought.score).finish()
        }));
        // What is pruned goes here, and its pages with it.
        let kept = thoughts.into_iter().take(keep).map(|thought| thought.session);
        base = base.merge(&mut kept.collect::<Vec<_>>()).await?;
    }

    base.append(input.text_or("conclusion", CONCLUSION)?)?;
    let reply = base.reply(&input.sampling("conclusion_tokens", 24)?).await?;
    let usage = base.usage();
    let result = Object::new().text("text", &reply.text).raw("thoughts", &list(&reports));
    let result = result.whole("generated", usage.generated).whole("prefilled", usage.prefilled);
    process::send(result.finish())?;
    Ok(())
}

#[cfg(test)]
mod tests;
