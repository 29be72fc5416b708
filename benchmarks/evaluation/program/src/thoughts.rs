//! Applications that follow several thoughts at once.

use crate::given::Given;
use crate::{context, go_on, Answer};
use std::cmp::Reverse;
use symphony::{try_join_all, KvFile, Result};

/// One thought, with the file that holds it and all before it.
struct Thought {
    kv: KvFile,
    /// How it began and went on: entries of the file from `start` on.
    tokens: Vec<u32>,
    start: u32,
    score: u32,
}

/// Follows a thought that begins with `hint`, and scores it by the token behind `judge`.
async fn think(
    from: &KvFile,
    start: u32,
    hint: &[u32],
    new: u32,
    judge: &[u32],
) -> Result<Thought> {
    let kv = from.fork()?;
    let thought = go_on(&kv, hint, new).await?;
    let asked = [&thought[thought.len() - 1..], judge].concat();
    let score = kv.pred(&asked).argmax().await?.token;
    Ok(Thought { kv, tokens: [hint, &thought].concat(), start, score })
}

/// The best so many, best first: with random weights any order will do that all clients have.
fn keep_best(mut thoughts: Vec<Thought>, count: u32) -> Vec<Thought> {
    thoughts.sort_by_key(|thought| Reverse(thought.score));
    thoughts.truncate(count as usize);
    thoughts
}

/// Graph of Thought: thoughts side by side, the best of them merged into one context.
pub async fn graph(given: &Given) -> Answer {
    let base = context(given)?;
    base.prefill(&given.tokens("question")?).await?;
    let start = base.len()?;
    let (new, judge, hints) =
        (given.number("thought")?, given.tokens("judge")?, given.lists("hints")?);
    let thinking = hints.iter().map(|hint| think(&base, start, hint, new, &judge));
    let best = keep_best(try_join_all(thinking).await?, given.number("keep")?);
    let merged = base.fork()?;
    let mut unread = Vec::new();
    for thought in &best {
        if given.flag("exact") {
            unread.extend(&thought.tokens);
        } else {
            // Its K and V as they are: thoughts do not see one another, what follows sees all.
            merged.append(&thought.kv, start..start + thought.tokens.len() as u32)?;
        }
    }
    unread.extend(given.tokens("merge")?);
    Ok(go_on(&merged, &unread, given.number("answer")?).await?)
}

/// Tree of Thought: from each of the best thoughts some more, as deep as asked.
pub async fn tree(given: &Given) -> Answer {
    let root = context(given)?;
    root.prefill(&given.tokens("question")?).await?;
    let (new, judge, hints) =
        (given.number("thought")?, given.tokens("judge")?, given.lists("hints")?);
    let start = root.len()?;
    let mut best = vec![Thought { kv: root, tokens: Vec::new(), start, score: 0 }];
    for _ in 0..given.number("depth")? {
        for thought in &best {
            // Only the thought goes on, not what it was asked.
            thought.kv.truncate(thought.start + thought.tokens.len() as u32)?;
        }
        let children = best.iter().flat_map(|parent| {
            let start = parent.start + parent.tokens.len() as u32;
            let judge = &judge;
            hints.iter().map(move |hint| think(&parent.kv, start, hint, new, judge))
        });
        best = keep_best(try_join_all(children).await?, given.number("keep")?);
    }
    let first = &best[0];
    first.kv.truncate(first.start + first.tokens.len() as u32)?;
    Ok(go_on(&first.kv, &given.tokens("merge")?, given.number("answer")?).await?)
}

/// Skeleton of Thought: an outline, then all of its points at once.
pub async fn skeleton(given: &Given) -> Answer {
    let outline = context(given)?;
    let written = go_on(&outline, &given.tokens("question")?, given.number("outline")?).await?;
    let last = &written[written.len() - 1..];
    let new = given.number("thought")?;
    let hints = given.lists("hints")?;
    let points = hints.iter().map(|hint| {
        let outline = &outline;
        async move { go_on(&outline.fork()?, &[last, hint].concat(), new).await }
    });
    Ok(try_join_all(points).await?.concat())
}
