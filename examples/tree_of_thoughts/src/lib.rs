//! Tree of thoughts: each of the best texts so far goes on in several ways, the model judges every way,
//! and only the best of the level live on, for as many levels as asked for.

use std::error::Error;
use symphony::json::{list, quote, Object};
use symphony::prompt::fill;
use symphony::{process, try_join_all, Input, Session};

const PROMPT: &str = "\"\"\"Sorts a list of numbers, step by step.\"\"\"\n\n\ndef sort(numbers):\n";
const STEP: &str = "    # Step {level}.\n";
const JUDGE: &str = "\n\n# Is this right?\nok =";
const CONCLUSION: &str = "\n    return";

/// A text of some steps, and what the model thinks of it.
struct Node {
    session: Session,
    steps: Vec<String>,
    score: f64,
}

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let (levels, branches) =
        (input.whole("levels", 3, 1..=16)?, input.whole("branches", 3, 1..=64)?);
    let breadth = input.whole("breadth", 2, 1..=64)?;
    let sampling = input.sampling("tokens", 16)?;
    let (words, judge) = (input.text_or("step", STEP)?, input.text_or("judge", JUDGE)?);
    let (good, bad) = (input.text_or("good", " True")?, input.text_or("bad", " False")?);

    let session = Session::new(input.text_or("prompt", PROMPT)?)?;
    let mut frontier = vec![Node { session, steps: Vec::new(), score: 0.0 }];
    let mut levels_seen = Vec::new();
    for level in 0..levels {
        let words = &fill(words, &[("level", &format!("{}", level + 1))]);
        let ways = frontier.iter_mut().enumerate().map(|(place, Node { session, steps, .. })| {
            let (steps, sampling) = (&*steps, &sampling);
            session.fan_out(branches, move |way, mut session| async move {
                session.append(words)?;
                let reply = session.reply(&sampling.branch(place * branches + way)).await?;
                let score = session.log_odds(judge, good, bad).await?;
                let steps = [steps.as_slice(), &[reply.text]].concat();
                Ok(Node { session, steps, score })
            })
        });
        // What the frontier held alone goes with it: of its pages, those of pruned ways.
        let mut grown: Vec<Node> = try_join_all(ways).await?.into_iter().flatten().collect();
        grown.sort_by(|a, b| b.score.total_cmp(&a.score));
        let scores = grown.iter().map(|node| Object::new().decimal("score", node.score).finish());
        levels_seen.push(list(scores));
        grown.truncate(breadth);
        frontier = grown;
    }

    let Node { mut session, steps, score } = frontier.swap_remove(0);
    session.append(input.text_or("conclusion", CONCLUSION)?)?;
    let reply = session.reply(&input.sampling("conclusion_tokens", 16)?).await?;
    let result = Object::new().text("text", &reply.text).decimal("score", score);
    let result = result.raw("steps", &list(steps.iter().map(|step| quote(step))));
    let result = result.raw("levels", &list(levels_seen));
    let usage = session.usage();
    let result = result.whole("generated", usage.generated).whole("prefilled", usage.prefilled);
    process::send(result.finish())?;
    Ok(())
}

#[cfg(test)]
mod tests;
