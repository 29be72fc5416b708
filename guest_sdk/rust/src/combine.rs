//! Futures out of futures: all of them, the first of them, one within a time.

use crate::error::Error;
use crate::process;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

enum Item<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
    Taken,
}

impl<F: Future> Item<F> {
    /// Goes on where it runs; returns whether it is done.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if let Item::Running(future) = self {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *self = Item::Done(value),
                Poll::Pending => return false,
            }
        }
        true
    }

    fn take(&mut self) -> F::Output {
        match core::mem::replace(self, Item::Taken) {
            Item::Done(value) => value,
            _ => panic!("a future was polled after it had finished"),
        }
    }
}

/// See [`join_all`].
#[must_use = "futures do nothing unless awaited"]
pub struct JoinAll<F: Future> {
    items: Vec<Item<F>>,
}

/// Runs futures side by side; their outputs come in the order of the futures.
///
/// ```
/// # symphony::testing::Host::new().run(|| {
/// use symphony::{block_on, join_all, model, KvFile};
///
/// block_on(async {
///     let prefix = KvFile::create()?;
///     prefix.prefill(&model::tokenize("def ")?).await?;
///     let files = (0..16).map(|_| prefix.fork()).collect::<symphony::Result<Vec<_>>>()?;
///     // Sixteen forward passes, all under way before the program waits: one step of the server.
///     let answers = join_all(files.iter().map(|kv| kv.pred(&[97]).argmax())).await;
///     assert_eq!(answers.len(), 16);
///     symphony::Result::Ok(())
/// })
/// # .unwrap(); });
/// ```
pub fn join_all<I>(futures: I) -> JoinAll<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    let items = futures.into_iter().map(|future| Item::Running(Box::pin(future)));
    JoinAll { items: items.collect() }
}

// A future that runs is pinned in its box; a finished one's output is plain data.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = self.items.iter_mut().fold(true, |done, item| item.poll(context) & done);
        if !done {
            return Poll::Pending;
        }
        Poll::Ready(self.items.iter_mut().map(Item::take).collect())
    }
}

/// See [`try_join_all`].
#[must_use = "futures do nothing unless awaited"]
pub struct TryJoinAll<F: Future> {
    items: Vec<Item<F>>,
}

/// Runs futures side by side until all have succeeded or one has failed; the others are dropped
/// then, which cancels their work.
pub fn try_join_all<I, T, E>(futures: I) -> TryJoinAll<I::Item>
where
    I: IntoIterator,
    I::Item: Future<Output = Result<T, E>>,
{
    TryJoinAll { items: join_all(futures).items }
}

impl<F: Future> Unpin for TryJoinAll<F> {}

impl<F, T, E> Future for TryJoinAll<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<Vec<T>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut done = true;
        for item in self.items.iter_mut() {
            done &= item.poll(context);
            if let Item::Done(Err(_)) = item {
                let failed = item.take().map(|_| Vec::new());
                self.items.clear();
                return Poll::Ready(failed);
            }
        }
        if !done {
            return Poll::Pending;
        }
        Poll::Ready(self.items.iter_mut().map(Item::take).collect())
    }
}

/// Which of two futures was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument's output.
    Left(A),
    /// The second argument's output.
    Right(B),
}

/// See [`select`].
#[must_use = "futures do nothing unless awaited"]
pub struct Select<A: Future, B: Future> {
    left: Item<A>,
    right: Item<B>,
}

/// Runs two futures until one has finished; the other is dropped, which cancels its work.
pub fn select<A: Future, B: Future>(left: A, right: B) -> Select<A, B> {
    Select { left: Item::Running(Box::pin(left)), right: Item::Running(Box::pin(right)) }
}

impl<A: Future, B: Future> Unpin for Select<A, B> {}

impl<A: Future, B: Future> Future for Select<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left.poll(context) {
            self.right = Item::Taken;
            return Poll::Ready(Either::Left(self.left.take()));
        }
        if self.right.poll(context) {
            self.left = Item::Taken;
            return Poll::Ready(Either::Right(self.right.take()));
        }
        Poll::Pending
    }
}

/// See [`select_all`].
#[must_use = "futures do nothing unless awaited"]
pub struct SelectAll<F: Future> {
    items: Vec<Item<F>>,
}

/// Runs futures until one has finished, and gives its index and output; the others are dropped,
/// which cancels their work. [`as_completed`] lets them run on.
pub fn select_all<I>(futures: I) -> SelectAll<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    SelectAll { items: join_all(futures).items }
}

impl<F: Future> Unpin for SelectAll<F> {}

impl<F: Future> Future for SelectAll<F> {
    type Output = (usize, F::Output);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.items.is_empty(), "select_all needs a future, and runs once");
        match self.items.iter_mut().position(|item| item.poll(context)) {
            Some(index) => {
                let value = self.items[index].take();
                self.items.clear();
                Poll::Ready((index, value))
            }
            None => Poll::Pending,
        }
    }
}

/// Futures that run side by side, and give their outputs as they end. Dropping it drops those that
/// run, which cancels their work.
#[must_use = "futures do nothing unless awaited"]
pub struct AsCompleted<F: Future> {
    /// Those that run, with their places in what was given.
    running: Vec<(usize, Pin<Box<F>>)>,
}

/// Runs futures side by side; [`AsCompleted::next`] gives the output of each as it ends.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// use std::time::Duration;
/// use symphony::{as_completed, process};
///
/// let mut sleeps = as_completed([30, 10, 20].map(|ms| process::sleep(Duration::from_millis(ms))));
/// let mut order = Vec::new();
/// while let Some((place, slept)) = sleeps.next().await {
///     slept?;
///     order.push(place);
/// }
/// assert_eq!(order, [1, 2, 0]);
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
pub fn as_completed<I>(futures: I) -> AsCompleted<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    AsCompleted { running: futures.into_iter().map(Box::pin).enumerate().collect() }
}

impl<F: Future> AsCompleted<F> {
    /// The place and the output of the next future that ends; `None` when all have ended.
    pub async fn next(&mut self) -> Option<(usize, F::Output)> {
        Next(self).await
    }

    /// How many still run.
    pub fn running(&self) -> usize {
        self.running.len()
    }
}

struct Next<'a, F: Future>(&'a mut AsCompleted<F>);

impl<F: Future> Future for Next<'_, F> {
    type Output = Option<(usize, F::Output)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = &mut self.0.running;
        if running.is_empty() {
            return Poll::Ready(None);
        }
        let ended = running.iter_mut().enumerate().find_map(|(i, (_, future))| {
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Some((i, output)),
                Poll::Pending => None,
            }
        });
        match ended {
            Some((i, output)) => Poll::Ready(Some((running.remove(i).0, output))),
            None => Poll::Pending,
        }
    }
}

/// The future's output, or `None` when it took longer; its work is cancelled then.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<Option<F::Output>, Error> {
    match select(future, process::sleep(limit)).await {
        Either::Left(value) => Ok(Some(value)),
        Either::Right(slept) => slept.map(|()| None),
    }
}

macro_rules! opaque {
    ($($name:ident<$($f:ident),+>),*) => {$(
        impl<$($f: Future),+> fmt::Debug for $name<$($f),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

opaque!(JoinAll<F>, TryJoinAll<F>, AsCompleted<F>, SelectAll<F>, Select<A, B>);
