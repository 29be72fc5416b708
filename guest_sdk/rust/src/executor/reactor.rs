//! The reactor: which tickets are under way, and what came of them.

use super::Given;
use crate::error::{check, Errno};
use crate::raw;
use alloc::vec::Vec;
use core::task::Waker;

/// After a wait, tickets are tried until this many in a row were not ready: in lockstep all of
/// them are, and a thousand sleepers must not cost a thousand calls.
pub(super) const MISSES_MAX: usize = 8;
pub(super) const TAKE_ROOM: usize = 256;

enum Slot {
    Free,
    Waiting(i32, Waker),
    Done(Given),
}

pub(super) struct Reactor {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Tickets under way, oldest first, and the slot of each.
    tickets: Vec<i32>,
    owners: Vec<usize>,
    room: Vec<u8>,
}

impl Reactor {
    pub(super) const fn new() -> Reactor {
        Reactor {
            slots: Vec::new(),
            free: Vec::new(),
            tickets: Vec::new(),
            owners: Vec::new(),
            room: Vec::new(),
        }
    }

    pub(super) fn register(&mut self, ticket: i32, waker: Waker) -> usize {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(Slot::Free);
        }
        self.slots[slot] = Slot::Waiting(ticket, waker);
        self.tickets.push(ticket);
        self.owners.push(slot);
        slot
    }

    pub(super) fn poll(
        &mut self,
        slot: usize,
        waker: &Waker,
    ) -> Option<core::result::Result<Vec<u8>, Errno>> {
        if let Slot::Waiting(_, known) = &mut self.slots[slot] {
            if !known.will_wake(waker) {
                *known = waker.clone();
            }
            return None;
        }
        self.free.push(slot);
        match core::mem::replace(&mut self.slots[slot], Slot::Free) {
            Slot::Done(result) => Some(result),
            _ => unreachable!("a ticket's slot is waiting or done"),
        }
    }

    /// Forgets a slot and returns its ticket where that is still under way.
    pub(super) fn remove(&mut self, slot: usize) -> Option<i32> {
        self.free.push(slot);
        match core::mem::replace(&mut self.slots[slot], Slot::Free) {
            Slot::Waiting(ticket, _) => {
                if let Some(at) = self.owners.iter().position(|owner| *owner == slot) {
                    self.owners.remove(at);
                    self.tickets.remove(at);
                }
                Some(ticket)
            }
            _ => None,
        }
    }

    /// Waits until a ticket is ready, takes what is ready, and returns whom to wake.
    pub(super) fn wait(&mut self) -> Vec<Waker> {
        let count = self.tickets.len();
        assert!(count > 0, "deadlock: every task waits, and no ticket is under way");
        if count == 1 {
            return self.claim();
        }
        let index = unsafe { raw::wait(self.tickets.as_ptr(), count, -1) };
        let first = match check("wait", index) {
            Ok(index) => index as usize,
            Err(error) => panic!("{}", error),
        };
        let mut wakers = Vec::new();
        let mut misses = 0;
        for offset in 0..count {
            let at = (first + offset) % count;
            match self.try_take(at) {
                Some(waker) => {
                    wakers.push(waker);
                    misses = 0;
                }
                None => misses += 1,
            }
            if misses >= MISSES_MAX {
                break;
            }
        }
        self.forget_done();
        wakers
    }

    /// The same for the only ticket that is under way.
    fn claim(&mut self) -> Vec<Waker> {
        self.room.resize(self.room.len().max(TAKE_ROOM), 0);
        let room = (self.room.as_mut_ptr(), self.room.len());
        let result = unsafe { raw::claim(self.tickets[0], room.0, room.1, -1) };
        let waker = self.accept(0, result);
        self.forget_done();
        waker.into_iter().collect()
    }

    /// Takes the result of ticket number `at`; `None` where it is not ready.
    fn try_take(&mut self, at: usize) -> Option<Waker> {
        self.room.resize(self.room.len().max(TAKE_ROOM), 0);
        let room = (self.room.as_mut_ptr(), self.room.len());
        let result = unsafe { raw::take(self.tickets[at], room.0, room.1) };
        self.accept(at, result)
    }

    /// Keeps what taking ticket number `at` gave; again with more room where that was too little.
    fn accept(&mut self, at: usize, mut result: i32) -> Option<Waker> {
        let taken = loop {
            match check("take", result) {
                Ok(length) if length as usize > self.room.len() => {
                    self.room.resize(length as usize, 0);
                    let room = (self.room.as_mut_ptr(), self.room.len());
                    result = unsafe { raw::take(self.tickets[at], room.0, room.1) };
                }
                Ok(length) => break Ok(self.room[..length as usize].to_vec()),
                Err(error) if error.errno == Errno::EAGAIN => return None,
                Err(error) => break Err(error.errno),
            }
        };
        let slot = core::mem::replace(&mut self.slots[self.owners[at]], Slot::Done(taken));
        match slot {
            Slot::Waiting(_, waker) => Some(waker),
            _ => unreachable!("a ticket that is waited for has a waiting slot"),
        }
    }

    fn forget_done(&mut self) {
        let mut kept = 0;
        for at in 0..self.tickets.len() {
            if matches!(self.slots[self.owners[at]], Slot::Waiting(..)) {
                self.tickets[kept] = self.tickets[at];
                self.owners[kept] = self.owners[at];
                kept += 1;
            }
        }
        self.tickets.truncate(kept);
        self.owners.truncate(kept);
    }
}
