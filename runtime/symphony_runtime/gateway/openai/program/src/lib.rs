//! The program that serves `/v1/completions` and its like: an ordinary LIP that ships with the server.
//!
//! The gateway hands it a checked job and turns what it tells into HTTP. Every answer to every prompt
//! is a branch of its own, and all passes of a step are under way before it waits.

mod branch;
mod call;
mod calls;
mod channels;
mod conversation;
mod drafts;
mod embedding;
mod failure;
mod job;
mod logprobs;
mod passes;
mod ranking;
mod scoring;
mod tasks;
mod text;
mod wire;

use branch::{Branch, AHEAD_UNREAD};
use failure::Failure;
use job::{Job, Prompt};
use logprobs::{pack_prompt, Entry};
use symphony::{msgpack, process, Value};
use wire::Wire;

symphony::entry!("lip_main", run);

/// Bytes that are taken from a ticket at once.
const ROOM: usize = 16 << 10;
/// After a wait, tickets are tried until so many in a row were not ready.
const MISSES_MAX: usize = 8;
/// A prefix is found again by whole pages: shorter files are not worth a call.
const PAGE_TOKENS: usize = 16;

fn run() -> i32 {
    let mut wire = Wire::default();
    let outcome = match msgpack::decode(&process::input()) {
        Ok(input) => obey(input, &mut wire),
        Err(_) => Err(tasks::bad_job()),
    };
    let code = match outcome {
        Ok(()) => 0,
        Err(failure) => {
            wire.failure(&failure);
            i32::from(failure.status >= 500)
        }
    };
    // Who cannot be told has gone.
    wire.flush().map_or(1, |()| code)
}

fn obey(input: Value, wire: &mut Wire) -> Result<(), Failure> {
    if let Some(Value::Str(task)) = input.get("task") {
        return tasks::serve(task, &input, wire);
    }
    let job = Job::read(&input).ok_or_else(tasks::bad_job)??;
    drop(input); // an answer may take long
    serve(&job, wire)
}

fn serve(job: &Job, wire: &mut Wire) -> Result<(), Failure> {
    let mut usage = Usage::default();
    let mut branches = Vec::with_capacity(job.prompts.len() * job.best_of);
    for (number, prompt) in job.prompts.iter().enumerate() {
        let mut tokens = prompt.tokens(&job.prefix)?;
        tokens.extend_from_slice(&job.after);
        let thinks = conversation::begin_answer(job, &mut tokens)?;
        let max = room_for_answer(job, tokens.len())?;
        usage.prompt += tokens.len();
        let first = branches.len();
        if job.scores() {
            check_computed(job, &usage)?;
            let entries = begin_scored(job, &tokens, max, &mut branches)?;
            if let Some(count) = job.prompt_logprobs {
                wire.prompt((number * job.n) as u16, job.n as u16, &pack_prompt(&entries, count)?);
            }
        } else {
            begin(job, &tokens, max, &mut usage, &mut branches)?;
        }
        if job.format.is_some() {
            branches[first..].iter_mut().for_each(|branch| branch.split(thinks));
        }
        if job.echo {
            echo(job, prompt, &tokens, &mut branches)?;
        }
    }
    if job.tells && job.stream {
        wire.begun(usage.prompt, usage.cached);
    }
    decode(job, &mut branches, wire).map_err(|why| named(why, job, &usage, &branches))?;
    for (kv, matched) in &usage.sharing {
        usage.cached += calls::kv_cached(*kv)?.saturating_sub(*matched);
    }
    usage.completion = branches.iter().map(|branch| branch.count).sum();
    for branch in &branches {
        usage.reasoning += branch.reasoning(job)?;
        let (drafted, accepted) = branch.drafted();
        usage.drafted += drafted;
        usage.accepted += accepted;
    }
    if !job.stream {
        for (prompt, answers) in branches.chunks_mut(job.best_of).enumerate() {
            tell_best(job, prompt, answers, wire);
        }
    }
    let told = [usage.prompt, usage.cached, usage.completion, usage.reasoning];
    wire.usage([told[0], told[1], told[2], told[3], usage.drafted, usage.accepted]);
    wire.flush()?;
    offer(job, &branches);
    Ok(())
}

/// Starts all answers to a prompt whose own tokens are scored: all of it is computed, known or not.
fn begin_scored(
    job: &Job,
    tokens: &[u32],
    max: usize,
    branches: &mut Vec<Branch>,
) -> Result<Vec<Entry>, Failure> {
    let kv = calls::kv_create()?;
    let echoed = if job.echo { job.logprobs } else { None };
    let count = echoed.max(job.prompt_logprobs).unwrap_or(0);
    let entries = scoring::score(kv, tokens, count, &job.adapter)?;
    for number in 0..job.best_of {
        let mut branch = Branch::new(number, calls::kv_fork(kv)?, tokens.len(), max, job);
        if let Some(count) = echoed {
            branch.tell_entries(&entries, count)?;
        }
        if max > 0 {
            branch.note_prompt(tokens, job);
            branch.start(&tokens[tokens.len() - 1..], job)?;
        }
        branches.push(branch);
    }
    Ok(entries)
}

/// Offers the files of each prompt's first answer, now that the client has everything.
fn offer(job: &Job, branches: &[Branch]) {
    for branch in branches.iter().step_by(job.best_of).filter(|b| b.entries() >= PAGE_TOKENS) {
        calls::kv_offer(branch.file());
    }
}

#[derive(Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
    reasoning: usize,
    /// Tokens that were drafted, and those of them that were right.
    drafted: usize,
    accepted: usize,
    /// Files that may have shared more of their prompts than was matched, and how much that was.
    sharing: Vec<(i32, usize)>,
}

/// How many tokens an answer may have after a prompt of so many.
fn room_for_answer(job: &Job, prompt: usize) -> Result<usize, Failure> {
    let refused = |what: String| Failure::refused("context_length_exceeded", "prompt", what);
    if prompt == 0 {
        return Err(Failure::refused(
            "invalid_prompt",
            "prompt",
            "the prompt has no tokens".into(),
        ));
    }
    let least = job.max.filter(|_| !job.clips).unwrap_or(1);
    if prompt + least > job.context {
        return Err(refused(format!(
            "the model's context is {} tokens; the prompt has {}, and {} are to follow",
            job.context, prompt, least
        )));
    }
    if prompt + least > job.kv_tokens {
        return Err(refused(format!(
            "the prompt has {} tokens, and {} are to follow; the tenant's limit `kv_tokens` is {}",
            prompt, least, job.kv_tokens
        )));
    }
    let room = job.context.min(job.kv_tokens) - prompt;
    match job.max {
        Some(max) if job.clips => Ok(max.min(room)),
        Some(max) => Ok(max),
        None => Ok(job.most.min(room)),
    }
}

/// Checks that what of the prompts so far is not known yet may be computed, and a token more.
fn check_computed(job: &Job, usage: &Usage) -> Result<(), Failure> {
    let computed = usage.prompt - usage.cached;
    if computed < job.tokens {
        return Ok(());
    }
    let message = format!(
        "{} tokens of prompts are to be computed, and answers to follow; \
         the tenant's limit `tokens` of a run is {}",
        computed, job.tokens
    );
    Err(Failure::refused("limit_exceeded", "prompt", message))
}

/// Names the run's own limit, where an answer has come so far that it is the one that was met.
fn named(failure: Failure, job: &Job, usage: &Usage, branches: &[Branch]) -> Failure {
    if failure.code != "over_quota" {
        return failure;
    }
    // Tokens that the server has computed, and this program may not have been given yet.
    let ahead = AHEAD_UNREAD as usize;
    let answered: usize = branches.iter().map(|branch| branch.count + ahead).sum();
    let limits = [
        ("tokens", usage.prompt - usage.cached, job.tokens),
        ("kv_tokens", usage.prompt, job.kv_tokens),
    ];
    for (limit, prompts, most) in limits {
        if prompts + answered >= most {
            let message = format!(
                "the answers are cut off at the tenant's limit `{}` of a run, {}",
                limit, most
            );
            return Failure { status: 400, code: "limit_exceeded", param: "max_tokens", message };
        }
    }
    failure
}

/// Starts all answers to a prompt: what of it is not known yet is computed once.
fn begin(
    job: &Job,
    tokens: &[u32],
    max: usize,
    usage: &mut Usage,
    branches: &mut Vec<Branch>,
) -> Result<(), Failure> {
    if max == 0 {
        branches.extend((0..job.best_of).map(|number| Branch::new(number, 0, 0, max, job)));
        return Ok(());
    }
    // What an adapter has computed is found by `share` alone.
    let matches = tokens.len() > PAGE_TOKENS && job.adapter.is_empty();
    let known = if matches { calls::kv_match(tokens)? } else { None };
    let (kv, cached) = match known {
        Some(known) => known,
        None => (calls::kv_create()?, 0),
    };
    usage.cached += cached;
    check_computed(job, usage)?;
    let fresh = &tokens[cached..];
    if fresh.len() > PAGE_TOKENS {
        usage.sharing.push((kv, cached));
    }
    if job.best_of == 1 {
        let mut branch = Branch::new(0, kv, tokens.len(), max, job);
        branch.note_prompt(tokens, job);
        if job.may_draft() {
            // What is computed in vain must not use up the run's tokens.
            let spare = job.tokens.saturating_sub(usage.prompt + max + AHEAD_UNREAD as usize);
            branch.allow_drafts(tokens, spare, job)?;
        }
        branch.start(fresh, job)?;
        branches.push(branch);
        return Ok(());
    }
    let (rest, last) = fresh.split_at(fresh.len() - 1);
    if !rest.is_empty() {
        calls::fill(kv, rest, &job.adapter)?;
    }
    for number in 0..job.best_of {
        let mut branch = Branch::new(number, calls::kv_fork(kv)?, tokens.len(), max, job);
        branch.note_prompt(tokens, job);
        branch.start(last, job)?;
        branches.push(branch);
    }
    Ok(())
}

/// Puts the prompt's text before each of its answers.
fn echo(
    job: &Job,
    prompt: &Prompt,
    tokens: &[u32],
    branches: &mut [Branch],
) -> Result<(), Failure> {
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        _ => {
            let mut bytes = Vec::new();
            calls::detokenize(tokens, &mut bytes)?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    let first = branches.len() - job.best_of;
    branches[first..].iter_mut().for_each(|branch| branch.say(&text));
    Ok(())
}

/// Lets all branches go on to their ends.
fn decode(job: &Job, branches: &mut [Branch], wire: &mut Wire) -> Result<(), Failure> {
    let mut room = vec![0; ROOM.max(job.record_bytes())];
    let mut tickets = Vec::with_capacity(branches.len());
    let mut owners = Vec::with_capacity(branches.len());
    if job.stream {
        tell_pieces(job, branches, wire)?;
    }
    loop {
        tickets.clear();
        owners.clear();
        for (owner, branch) in branches.iter().enumerate().filter(|(_, branch)| branch.going()) {
            tickets.push(branch.ticket);
            owners.push(owner);
        }
        if tickets.is_empty() {
            return Ok(());
        }
        if let [owner] = owners[..] {
            branches[owner].claim(job, &mut room)?;
        } else {
            take_ready(job, branches, (&tickets, &owners), &mut room)?;
        }
        if job.stream {
            tell_pieces(job, branches, wire)?;
        }
    }
}

/// Waits for tickets, and takes from those that are ready.
fn take_ready(
    job: &Job,
    branches: &mut [Branch],
    (tickets, owners): (&[i32], &[usize]),
    room: &mut [u8],
) -> Result<(), Failure> {
    let first = calls::wait(tickets)?;
    let mut misses = 0;
    for offset in 0..tickets.len() {
        let owner = owners[(first + offset) % owners.len()];
        misses = if branches[owner].take(job, room)? { 0 } else { misses + 1 };
        if misses >= MISSES_MAX {
            break;
        }
    }
    Ok(())
}

/// Tells what has come, in one message; the last one goes with the usage.
fn tell_pieces(job: &Job, branches: &mut [Branch], wire: &mut Wire) -> Result<(), Failure> {
    for (choice, branch) in branches.iter_mut().enumerate() {
        if branch.speaks() {
            branch.tell(choice as u16, job, wire);
        }
    }
    if branches.iter().any(Branch::going) {
        wire.flush()?;
    }
    Ok(())
}

/// Tells the likeliest answers to a prompt.
fn tell_best(job: &Job, prompt: usize, answers: &mut [Branch], wire: &mut Wire) {
    if job.best_of > job.n {
        answers.sort_by(|a, b| b.score().total_cmp(&a.score()));
    }
    for (number, branch) in answers[..job.n].iter_mut().enumerate() {
        branch.tell((prompt * job.n + number) as u16, job, wire);
    }
}
