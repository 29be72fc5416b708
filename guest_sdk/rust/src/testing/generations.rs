//! Generations of the host's byte model: a token at each wait, no further ahead than was asked for.

use super::constraints::Text;
use super::{passes, Work, World, EOS};
use crate::value::Value;
use crate::Errno;
use std::collections::BTreeSet;
use std::vec::Vec;

const CONTEXT: usize = 4096;

/// One generation: its file's entries, and what it has given.
pub(super) struct Generation {
    kv: i32,
    history: Vec<u32>,
    /// What the next step appends.
    next: Vec<u32>,
    options: Value,
    text: Option<Text>,
    left: usize,
    stop: BTreeSet<u32>,
    ahead: usize,
    /// Records that make it ready, as its end does.
    lot: usize,
    /// Records that can be taken, each of so many bytes.
    records: Vec<u8>,
    record: usize,
    end: Option<Result<(), Errno>>,
}

impl Generation {
    pub(super) fn new(
        world: &World,
        kv: i32,
        history: Vec<u32>,
        tokens: &[u32],
        options: &[u8],
    ) -> Result<Generation, Errno> {
        let options = passes::options(options)?;
        let number = |key, default| match options.get(key) {
            None => Ok(default),
            Some(value) => value.as_u32().map(|n| n as usize).ok_or(Errno::EINVAL),
        };
        let room = (CONTEXT + 1).checked_sub(history.len() + tokens.len()).ok_or(Errno::EFBIG)?;
        let left = number("max", room)?.min(room);
        let ahead = number("ahead", 8)?;
        let stop = options.get("stop").and_then(Value::as_array).unwrap_or(&[]);
        let mut stop: BTreeSet<u32> = stop.iter().filter_map(Value::as_u32).collect();
        let text = Text::of(world, kv, history.len() + tokens.len(), &options)?;
        if text.is_some() {
            stop.insert(EOS);
        }
        let of_pass = options
            .as_map()
            .ok_or(Errno::EINVAL)?
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), Some("max" | "stop" | "ahead" | "lot")));
        let of_pass: Vec<(Value, Value)> = of_pass.cloned().collect();
        if left == 0 || tokens.is_empty() || of_pass.iter().any(|(key, _)| is_senseless(key)) {
            return Err(Errno::EINVAL);
        }
        Ok(Generation {
            kv,
            history,
            next: tokens.to_vec(),
            left,
            stop,
            text,
            ahead,
            lot: number("lot", 1)?.min(ahead + 1),
            record: 8 * (1 + number("logprobs", 0)?),
            options: Value::Map(of_pass),
            records: Vec::new(),
            end: None,
        })
    }

    /// Whether something can be taken.
    pub(super) fn ready(&self) -> bool {
        self.records.len() >= self.lot * self.record || self.end.is_some()
    }

    /// Whether its file is kept from other calls.
    pub(super) fn keeps(&self, kv: i32) -> bool {
        self.kv == kv && !(self.end.is_some() && self.records.is_empty())
    }

    fn runs(&self) -> bool {
        self.end.is_none() && self.records.len() / self.record <= self.ahead
    }

    fn give(&mut self, record: &[u8]) {
        let token = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        self.records.extend_from_slice(record);
        self.next = [token].into();
        self.left -= 1;
        if self.left == 0 || self.stop.contains(&token) {
            self.end = Some(Ok(()));
        }
    }
}

/// What a pass may be asked for, and a generation may not.
fn is_senseless(key: &Value) -> bool {
    matches!(key.as_str(), Some("at" | "parents" | "keep"))
}

/// Computes a token of each generation that may run; how many did.
pub(super) fn step(world: &mut World) -> usize {
    let mut tickets = std::mem::take(&mut world.tickets);
    let mut steps = 0;
    for ticket in tickets.values_mut() {
        match &mut ticket.state {
            Work::Generation(generation) if generation.runs() => {
                steps += 1;
                advance(world, generation);
            }
            _ => {}
        }
    }
    world.tickets = tickets;
    steps
}

fn advance(world: &mut World, generation: &mut Generation) {
    let Generation { history, next, options, text, .. } = &*generation;
    match passes::run(world, history, next, options, text.as_ref()) {
        Ok((record, after)) => {
            if let Some(text) = text {
                text.note(world);
            }
            if let Some(file) = world.files.get_mut(&generation.kv) {
                file.clone_from(&after);
            }
            generation.history = after;
            generation.give(&record);
        }
        Err(errno) => generation.end = Some(Err(errno)),
    }
}

/// What `take` gives of a generation: records that fit, or how long what is ready is; `None` for any
/// other ticket.
pub(super) fn take(
    world: &mut World,
    ticket: i32,
    cap: usize,
) -> Option<Result<Result<Vec<u8>, i32>, Errno>> {
    let generation = match &mut world.tickets.get_mut(&ticket)?.state {
        Work::Generation(generation) => generation,
        _ => return None,
    };
    if !generation.records.is_empty() {
        let fits = generation.records.len().min(cap / generation.record * generation.record);
        if fits == 0 {
            return Some(Ok(Err(generation.records.len() as i32)));
        }
        return Some(Ok(Ok(generation.records.drain(..fits).collect())));
    }
    let end = generation.end;
    if end.is_some() {
        world.tickets.remove(&ticket);
    }
    Some(end.map_or(Err(Errno::EAGAIN), |end| end.map(|()| Ok(Vec::new()))))
}
