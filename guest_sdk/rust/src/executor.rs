//! Tasks in one instance, over tickets.
//!
//! A ticket is work that the server does meanwhile. The executor runs every task that can go on;
//! when none can, it makes one `wait` over all tickets, takes the results that are there, and goes
//! on. So the forward passes of many tasks are all under way before the program waits, and the
//! server computes them in one step.
//!
//! A future that is dropped cancels its ticket.

use self::reactor::Reactor;
use crate::error::{quoted, Errno, Error, Result};
use crate::local::local;
use crate::model;
use crate::raw;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::Future;
use core::panic::Location;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};

/// The task that `block_on` runs itself; spawned ones count from 1.
const MAIN: u64 = 0;

// --- Tickets -------------------------------------------------------------------------------------

/// How the bytes of a result become a value; the number is the one given to [`Ticket::new`].
pub(crate) type Decode<T> = fn(&[u8], usize) -> Option<T>;

/// Work under way on the server; awaiting it gives the result.
///
/// The work began when the ticket was made, not when it is first awaited. Dropping the ticket
/// cancels it.
#[must_use = "dropping a ticket cancels its work"]
pub struct Ticket<T> {
    origin: Origin,
    state: State,
    decode: Decode<T>,
    shape: usize,
}

/// The call that work began with, for the words of its errors.
pub(crate) struct Origin {
    call: &'static str,
    operand: Operand,
    location: &'static Location<'static>,
}

/// What a call was made with.
pub(crate) enum Operand {
    None,
    Name(Box<str>),
    /// So many tokens; the largest of them.
    Tokens {
        count: usize,
        largest: u32,
    },
}

impl Origin {
    #[track_caller]
    pub(crate) fn new(call: &'static str, operand: Operand) -> Origin {
        Origin { call, operand, location: Location::caller() }
    }

    fn error(&self, errno: Errno) -> Error {
        let error = Error::new(self.call, errno).at(self.location);
        match &self.operand {
            Operand::None => error,
            Operand::Name(name) => error.with_operand(quoted(name)),
            Operand::Tokens { count, largest } => match (errno, model::info()) {
                (Errno::EFBIG, Ok(info)) => error.with_operand(format!(
                    "{} tokens, where the model's context is {}",
                    count, info.max_context
                )),
                (Errno::EINVAL, _) if *count == 0 => error.with_operand("no tokens"),
                (Errno::EINVAL, Ok(info)) if *largest >= info.vocab_size => error.with_operand(
                    format!("token {}, where the model has {}", largest, info.vocab_size),
                ),
                _ => error,
            },
        }
    }
}

/// Bytes, or why there are none.
pub(crate) type Given = core::result::Result<Vec<u8>, Errno>;

enum State {
    Failed(Errno),
    /// Done when the ticket was made.
    Given(Option<Given>),
    /// Under way, and not awaited yet.
    Started(i32),
    /// Under way or done; the reactor keeps it in this slot.
    Registered(usize),
    Finished,
}

impl State {
    /// Of the ticket that a call returned, or of its errno.
    fn new(result: i32) -> State {
        if result < 0 {
            State::Failed(Errno::new(result.wrapping_neg()))
        } else {
            State::Started(result)
        }
    }

    /// What the ticket gives, once it is ready; None where it has given everything before.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Given>> {
        match *self {
            State::Failed(errno) => Poll::Ready(Some(Err(errno))),
            State::Given(ref mut given) => Poll::Ready(given.take()),
            State::Finished => Poll::Ready(None),
            State::Started(ticket) => {
                let waker = context.waker().clone();
                let slot = RUNTIME.with(|r| r.reactor.borrow_mut().register(ticket, waker));
                *self = State::Registered(slot);
                Poll::Pending
            }
            State::Registered(slot) => {
                match RUNTIME.with(|r| r.reactor.borrow_mut().poll(slot, context.waker())) {
                    Some(result) => Poll::Ready(Some(result)),
                    None => Poll::Pending,
                }
            }
        }
    }
}

impl<T> Ticket<T> {
    /// The ticket that a call returned; `shape` is handed to `decode`.
    #[track_caller]
    pub(crate) fn new(call: &'static str, result: i32, decode: Decode<T>, shape: usize) -> Self {
        Ticket::of(Origin::new(call, Operand::None), result, decode, shape)
    }

    /// The same, of a call on a name.
    #[track_caller]
    pub(crate) fn named(call: &'static str, name: &str, result: i32, decode: Decode<T>) -> Self {
        Ticket::of(Origin::new(call, Operand::Name(name.into())), result, decode, 0)
    }

    /// The same, of a call that is described.
    pub(crate) fn of(origin: Origin, result: i32, decode: Decode<T>, shape: usize) -> Self {
        Ticket { state: State::new(result), origin, decode, shape }
    }

    /// A ticket whose result is there.
    pub(crate) fn given(origin: Origin, given: Given, decode: Decode<T>, shape: usize) -> Self {
        Ticket { origin, state: State::Given(Some(given)), decode, shape }
    }

    /// Waits for this one ticket, from code that is not async.
    pub fn block(self) -> Result<T> {
        block_on(self)
    }

    fn finish(&self, result: Given) -> Result<T> {
        match result.map(|bytes| (self.decode)(&bytes, self.shape)) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(self.origin.error(Errno::EIO)),
            Err(errno) => Err(self.origin.error(errno)),
        }
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let result = match self.state.poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => panic!("a ticket was awaited after it had given its result"),
            Poll::Ready(Some(result)) => result,
        };
        self.state = State::Finished;
        Poll::Ready(self.finish(result))
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let ticket = match self.state {
            State::Started(ticket) => Some(ticket),
            State::Registered(slot) => RUNTIME.with(|r| r.reactor.borrow_mut().remove(slot)),
            State::Failed(_) | State::Given(_) | State::Finished => None,
        };
        if let Some(ticket) = ticket {
            // An answer would only say that the work had ended already.
            let _ = unsafe { raw::cancel(ticket) };
        }
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.origin.call)
    }
}

/// A ticket whose result comes in pieces, until an empty one. Dropping it cancels what is left.
pub(crate) struct Pieces {
    origin: Origin,
    ticket: i32,
    state: State,
}

impl Pieces {
    /// The ticket that a call returned.
    pub(crate) fn new(origin: Origin, result: i32) -> Pieces {
        Pieces { origin, ticket: result, state: State::new(result) }
    }

    /// No ticket: there is nothing to come.
    pub(crate) fn none(origin: Origin) -> Pieces {
        Pieces { origin, ticket: 0, state: State::Finished }
    }

    /// An error of the call.
    pub(crate) fn error(&self, errno: Errno) -> Error {
        self.origin.error(errno)
    }

    /// The next piece; empty at the end and ever after.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        let result = match self.state.poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => Ok(Vec::new()),
            Poll::Ready(Some(result)) => result,
        };
        let more = result.as_ref().map_or(false, |piece| !piece.is_empty());
        self.state = if more { State::Started(self.ticket) } else { State::Finished };
        Poll::Ready(result.map_err(|errno| self.origin.error(errno)))
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        match self.state {
            State::Failed(_) | State::Given(_) | State::Finished => return,
            State::Registered(slot) => drop(RUNTIME.with(|r| r.reactor.borrow_mut().remove(slot))),
            State::Started(_) => {}
        }
        // An answer would only say that the work had ended already.
        let _ = unsafe { raw::cancel(self.ticket) };
    }
}

// --- Tasks ---------------------------------------------------------------------------------------

type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Entry {
    id: u64,
    /// Absent while it is being polled.
    work: Option<Work>,
    waker: Waker,
}

struct Runtime {
    running: Cell<bool>,
    reactor: RefCell<Reactor>,
    ready: RefCell<Vec<Arc<TaskWaker>>>,
    tasks: RefCell<Vec<Option<Entry>>>,
    free: RefCell<Vec<usize>>,
    spawned: Cell<u64>,
}

local! {
    static RUNTIME: Runtime = Runtime {
        running: Cell::new(false),
        reactor: RefCell::new(Reactor::new()),
        ready: RefCell::new(Vec::new()),
        tasks: RefCell::new(Vec::new()),
        free: RefCell::new(Vec::new()),
        spawned: Cell::new(0),
    };
}

/// A task's place in the table; the upper half of its id tells it from earlier tenants.
fn place(id: u64) -> usize {
    (id & 0xffff_ffff) as usize
}

impl Runtime {
    fn add(&self, work: Work) -> u64 {
        let mut tasks = self.tasks.borrow_mut();
        let place = self.free.borrow_mut().pop().unwrap_or(tasks.len());
        if place == tasks.len() {
            tasks.push(None);
        }
        self.spawned.set(self.spawned.get() + 1);
        let id = self.spawned.get() << 32 | place as u64;
        let waker = Waker::from(TaskWaker::new(id));
        waker.wake_by_ref();
        tasks[place] = Some(Entry { id, work: Some(work), waker });
        id
    }

    /// Takes the work of a task that is still there out for polling.
    fn take_work(&self, id: u64) -> Option<(Work, Waker)> {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.get_mut(place(id))?.as_mut().filter(|entry| entry.id == id)?;
        Some((entry.work.take()?, entry.waker.clone()))
    }

    /// Puts work back, or returns it where the task was cancelled meanwhile.
    fn return_work(&self, id: u64, work: Work) -> Option<Work> {
        let mut tasks = self.tasks.borrow_mut();
        match tasks.get_mut(place(id)).and_then(Option::as_mut).filter(|entry| entry.id == id) {
            Some(entry) => {
                entry.work = Some(work);
                None
            }
            None => Some(work),
        }
    }

    /// Takes a task out of the table, for the caller to drop.
    fn remove(&self, id: u64) -> Option<Entry> {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.get_mut(place(id))?;
        if entry.as_ref().map_or(true, |entry| entry.id != id) {
            return None;
        }
        self.free.borrow_mut().push(place(id));
        entry.take()
    }
}

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
}

impl TaskWaker {
    fn new(id: u64) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { id, queued: AtomicBool::new(false) })
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            RUNTIME.with(|r| r.ready.borrow_mut().push(self.clone()));
        }
    }
}

/// Marks that the executor runs; at the end, however it comes, the tasks that are left are dropped.
struct Running;

impl Running {
    fn enter() -> Running {
        let nested = RUNTIME.with(|r| r.running.replace(true));
        assert!(!nested, "block_on (or Ticket::block) inside of a task: use .await");
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNTIME.with(|r| {
            let left = (r.tasks.take(), r.free.take());
            drop(left);
            r.ready.borrow_mut().clear();
            r.running.set(false);
        });
    }
}

/// Runs a future to its end, and every task that is spawned meanwhile; tasks that are left then are
/// dropped. The entry macro calls it for an async program.
///
/// # Panics
/// When it is called inside of a task, or when every task waits for another one.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let _running = Running::enter();
    let mut main = Box::pin(future);
    let task = TaskWaker::new(MAIN);
    let waker = Waker::from(task.clone());
    task.wake();
    loop {
        for task in next_ready() {
            task.queued.store(false, Ordering::Relaxed);
            if task.id != MAIN {
                run_task(task.id);
            } else if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return value;
            }
        }
    }
}

/// The tasks that can go on; waits for tickets until there is one.
fn next_ready() -> Vec<Arc<TaskWaker>> {
    loop {
        let ready = RUNTIME.with(|r| r.ready.take());
        if !ready.is_empty() {
            return ready;
        }
        let wakers = RUNTIME.with(|r| r.reactor.borrow_mut().wait());
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn run_task(id: u64) {
    let (mut work, waker) = match RUNTIME.with(|r| r.take_work(id)) {
        Some(taken) => taken,
        None => return,
    };
    // What a task owned is dropped outside of the table's borrow: its drop may call back.
    if work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        drop(work);
        drop(RUNTIME.with(|r| r.remove(id)));
    } else {
        drop(RUNTIME.with(|r| r.return_work(id, work)));
    }
}

// --- Spawning and joining ------------------------------------------------------------------------

struct Join<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A spawned task; awaiting it gives its output. Dropping it lets the task run on.
pub struct Task<T> {
    id: u64,
    join: Rc<RefCell<Join<T>>>,
}

/// Starts a task that runs beside the present one, until it ends or the program does.
///
/// ```
/// # symphony::testing::Host::new().run(|| {
/// use symphony::{block_on, process, spawn};
/// use std::time::Duration;
///
/// block_on(async {
///     let task = spawn(async {
///         process::sleep(Duration::from_millis(20)).await.unwrap();
///         42
///     });
///     assert_eq!(task.await, 42);
/// });
/// # });
/// ```
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let join = Rc::new(RefCell::new(Join { value: None, waker: None }));
    let shared = join.clone();
    let work = Box::pin(async move {
        let value = future.await;
        let mut join = shared.borrow_mut();
        join.value = Some(value);
        if let Some(waker) = join.waker.take() {
            waker.wake();
        }
    });
    Task { id: RUNTIME.with(|r| r.add(work)), join }
}

impl<T> Task<T> {
    /// Ends the task where it stands; its tickets are cancelled and its files closed.
    pub fn cancel(self) {
        drop(RUNTIME.with(|r| r.remove(self.id)));
    }

    /// Whether awaiting it would give its output at once.
    pub fn is_finished(&self) -> bool {
        self.join.borrow().value.is_some()
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut join = self.join.borrow_mut();
        match join.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                join.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.id >> 32)
    }
}

mod reactor;

#[cfg(test)]
mod tests;
