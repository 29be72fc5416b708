//! Constraints of the host: their calls, and where in each file a text under one begins.
#![allow(missing_docs, clippy::missing_safety_doc)]

use super::calls::{put, text, with};
use super::grammars::Grammar;
use super::World;
use crate::value::Value;
use crate::Errno;
use alloc::rc::Rc;
use std::string::String;
use std::vec::Vec;

/// A constraint's handle. Work that has begun with it goes on when it is closed.
pub(super) struct Held {
    grammar: Rc<Grammar>,
}

/// A text under a constraint, in a file.
pub(super) struct Text {
    grammar: Rc<Grammar>,
    place: (i32, i32),
    base: usize,
}

impl Text {
    /// The text of a call with these options, whose file will have so many entries behind it.
    pub(super) fn of(
        world: &World,
        kv: i32,
        entries: usize,
        options: &Value,
    ) -> Result<Option<Text>, Errno> {
        let (handle, since) = match (options.get("constraint"), options.get("since")) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(Errno::EINVAL),
            (Some(handle), since) => (handle.as_i64().ok_or(Errno::EINVAL)? as i32, since),
        };
        let last = options.get("at").map_or(true, |at| at.as_str() == Some("last"));
        if !last || options.get("parents").is_some() {
            return Err(Errno::EINVAL);
        }
        let held = world.constraints.get(&handle).ok_or(Errno::EBADF)?;
        let base = match since {
            None => world.texts.get(&(kv, handle)).map_or(entries, |base| *base),
            Some(since) => since.as_u32().ok_or(Errno::EINVAL)? as usize,
        };
        if base > entries {
            return Err(Errno::EINVAL);
        }
        Ok(Some(Text { grammar: held.grammar.clone(), place: (kv, handle), base }))
    }

    /// Rules out what cannot come behind these tokens of the file.
    pub(super) fn rule_out(&self, logits: &mut [f32], history: &[u32]) -> Result<(), Errno> {
        let allowed = self.grammar.allowed(history.get(self.base..).unwrap_or(&[]))?;
        for (logit, allowed) in logits.iter_mut().zip(allowed) {
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        if logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// The call has appended what it had to: the file knows from now on where the text begins.
    pub(super) fn note(&self, world: &mut World) {
        world.texts.insert(self.place, self.base);
    }
}

/// A file has what another one has.
pub(super) fn forked(world: &mut World, source: i32, kv: i32) {
    let of_source = world.texts.iter().filter(|((file, _), _)| *file == source);
    let texts: Vec<_> = of_source.map(|((_, of), base)| ((kv, *of), *base)).collect();
    world.texts.extend(texts);
}

/// A file has only so many entries left; none: it is closed.
pub(super) fn shortened(world: &mut World, kv: i32, entries: Option<usize>) {
    world.texts.retain(|(file, _), base| *file != kv || entries.map_or(false, |n| *base <= n));
}

pub unsafe fn constraint(kind: i32, ptr: *const u8, len: usize) -> i32 {
    with(|world| {
        let source = unsafe { text(ptr, len) }?;
        let grammar = match (kind, world.grammars.get(source)) {
            (0..=2, Some(expression)) => Grammar::expression(expression),
            (1, None) => Grammar::expression(source),
            (0 | 2, None) => Ok(Grammar::Anything),
            _ => return Err(Errno::EINVAL),
        };
        world.words = String::new();
        let grammar = grammar.map_err(|(errno, words)| {
            world.words = words;
            errno
        })?;
        world.issued += 1;
        world.constraints.insert(world.issued, Held { grammar: Rc::new(grammar) });
        Ok(world.issued)
    })
}

pub unsafe fn constraint_close(constraint: i32) -> i32 {
    with(|world| world.constraints.remove(&constraint).map(|_| 0).ok_or(Errno::EBADF))
}

pub unsafe fn last_error(ptr: *mut u8, cap: usize) -> i32 {
    with(|world| unsafe { put(world.words.as_bytes(), ptr, cap) })
}
