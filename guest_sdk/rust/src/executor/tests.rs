//! The executor against the host in memory.

use super::reactor::{MISSES_MAX, TAKE_ROOM};
use super::*;
use crate::testing::Host;
use crate::{
    join_all, process, select, select_all, timeout, tool, try_join_all, Either, KvFile, Sampling,
    Session, Value,
};
use alloc::string::String;
use alloc::vec;
use core::time::Duration;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn after(count: u64) -> u64 {
    process::sleep(ms(count)).await.unwrap();
    process::clock_ms()
}

#[test]
fn passes_of_all_tasks_are_under_way_before_the_program_waits() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            let tasks: Vec<_> = (0..16u32)
                .map(|i| {
                    spawn(async move {
                        let kv = KvFile::create().unwrap();
                        for _ in 0..5 {
                            kv.pred(&[i]).argmax().await.unwrap();
                        }
                    })
                })
                .collect();
            join_all(tasks).await;
        })
    });
    assert_eq!(seen.passes_per_wait, vec![16; 5]);
    // No call was made to hear that a result was not there.
    assert_eq!(seen.takes, 16 * 5);
    assert_eq!((seen.tickets_left, seen.files_left), (0, 0));
}

#[test]
fn sleepers_are_not_all_asked_at_every_wait() {
    let (times, seen) = Host::new().observe(|| block_on(join_all((1..=500).map(after))));
    assert_eq!(times.unwrap(), (1..=500).collect::<Vec<u64>>());
    assert_eq!(seen.passes_per_wait.len(), 500);
    assert!(seen.takes <= 500 * (1 + MISSES_MAX), "{}", seen.takes);
}

#[test]
fn a_dropped_future_cancels_its_ticket() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            drop(process::sleep(ms(1)));
            let first = select(after(5), after(500)).await;
            assert!(matches!(first, Either::Left(5)));
            assert_eq!(select_all((1..=8).map(|i| after(10 * (9 - i)))).await, (7, 15));
            assert_eq!(timeout(ms(5), after(50)).await.unwrap(), None);
            assert_eq!(timeout(ms(50), after(5)).await.unwrap(), Some(25));
        })
    });
    assert_eq!(seen.cancelled, 1 + 1 + 7 + 1 + 1);
    assert_eq!(seen.tickets_left, 0);
}

#[test]
fn a_result_that_came_and_was_not_awaited_is_dropped() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            let slow = after(10);
            let fast = after(10);
            assert!(matches!(select(slow, fast).await, Either::Left(10)));
        })
    });
    assert_eq!((seen.tickets_left, seen.cancelled), (0, 0));
}

#[test]
fn tasks_end_when_they_are_cancelled_or_the_program_ends() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            let endless = || async {
                let _kv = KvFile::create().unwrap();
                loop {
                    after(10).await;
                }
            };
            let cancelled = spawn(endless());
            let left = spawn(endless());
            after(25).await;
            assert!(!left.is_finished());
            cancelled.cancel();
            after(22).await;
        })
    });
    assert_eq!((seen.files_left, seen.tickets_left, seen.cancelled), (0, 0, 2));
}

#[test]
fn a_task_may_cancel_itself() {
    Host::new().run(|| {
        let mine: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        let inner = mine.clone();
        block_on(async {
            *mine.borrow_mut() = Some(spawn(async move {
                if let Some(task) = inner.borrow_mut().take() {
                    task.cancel();
                }
                after(1).await;
                panic!("a cancelled task went on");
            }));
            after(5).await;
        });
    });
}

#[test]
fn outputs_come_in_order_and_the_first_error_ends_the_rest() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            let all = join_all([30, 10, 20].map(|t| async move { (t, after(t).await) })).await;
            assert_eq!(all, [(30, 30), (10, 10), (20, 20)]);
            let tried = try_join_all([5, 1, 3].map(|t| async move {
                after(t).await;
                if t == 3 {
                    Err("three")
                } else {
                    Ok(t)
                }
            }));
            assert_eq!(tried.await, Err("three"));
            assert_eq!(
                try_join_all([2, 1].map(|t| async move { Ok::<_, ()>(t) })).await,
                Ok(vec![2, 1])
            );
        })
    });
    assert_eq!((seen.cancelled, seen.tickets_left), (1, 0));
}

#[test]
fn errors_tell_the_call_its_operand_and_the_line_that_made_it() {
    Host::new().run(|| {
        let closed = KvFile::from_handle(99);
        let pass = (closed.pred(&[1]).argmax(), line!());
        let error = pass.0.block().unwrap_err();
        assert_eq!((error.call, error.errno, error.operand()), ("pred", Errno::EBADF, None));
        assert_eq!((error.location().file(), error.location().line()), (file!(), pass.1));
        let error = KvFile::open("none").unwrap_err();
        let told = r#"kv_open("none"): ENOENT (no such name) at src/executor/tests.rs:"#;
        assert_eq!(format!("{}", error), format!("{}{}", told, line!() - 2));
        let long = KvFile::remove(&"\u{e9}".repeat(99)).unwrap_err();
        assert_eq!(long.operand(), Some(&*format!("\"{}...\"", "\u{e9}".repeat(40))));
        assert_eq!(process::recv().block().unwrap_err().errno, Errno::EPIPE);
        assert_eq!(
            tool::call("t.none", &Value::Nil).block().unwrap_err().operand(),
            Some(r#""t.none""#)
        );
    });
}

#[test]
fn errors_of_passes_tell_the_numbers() {
    Host::new().run(|| {
        let kv = KvFile::create().unwrap();
        let told = |tokens: &[u32]| {
            let error = block_on(kv.stream(tokens, &Sampling::new()).rest()).unwrap_err();
            String::from(error.operand().unwrap_or_default())
        };
        assert_eq!(told(&[1; 5000]), "5000 tokens, where the model's context is 4096");
        assert_eq!(told(&[1, 999]), "token 999, where the model has 257");
        assert_eq!(told(&[]), "no tokens");
        let mut session = Session::new("").unwrap();
        let sampling = Sampling::new();
        let (reply, line) = (session.reply(&sampling), line!());
        let error = block_on(reply).unwrap_err();
        assert_eq!((error.location().file(), error.location().line()), (file!(), line));
    });
}

#[test]
fn results_longer_than_the_room_are_taken_whole() {
    let long = vec![7; 10 * TAKE_ROOM];
    let expected = long.clone();
    Host::new().message(long).run(|| assert_eq!(process::recv().block().unwrap(), expected));
}

#[test]
#[should_panic(expected = "deadlock")]
fn tasks_that_wait_for_each_other_are_a_deadlock() {
    Host::new().run(|| {
        let mine: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        let inner = mine.clone();
        block_on(async {
            *mine.borrow_mut() = Some(spawn(async move {
                let me = inner.borrow_mut().take();
                me.unwrap().await;
            }));
            core::future::pending::<()>().await;
        });
    });
}

#[test]
#[should_panic(expected = "use .await")]
fn blocking_inside_of_a_task_is_refused() {
    Host::new().run(|| block_on(async { process::sleep(ms(1)).block() })).unwrap();
}

#[test]
fn a_program_may_block_again_after_a_panic() {
    let panicked = std::panic::catch_unwind(|| Host::new().run(|| block_on(async { panic!() })));
    assert!(panicked.is_err());
    assert_eq!(Host::new().run(|| block_on(after(3))), 3);
}

#[test]
fn a_pass_that_is_waited_for_at_once_gives_the_same() {
    let (_, seen) = Host::new().observe(|| {
        block_on(async {
            let (now, later) = (KvFile::create().unwrap(), KvFile::create().unwrap());
            for token in 3..6 {
                let token = [token];
                let first = now.pred(&token).blocking().argmax();
                assert_eq!(now.len().unwrap(), token[0] - 2);
                assert_eq!(first.await.unwrap(), later.pred(&token).argmax().await.unwrap());
            }
            // What is longer than the room kept for it is computed once, all the same.
            let long = now.pred(&[9]).blocking().logits().await.unwrap();
            assert_eq!(long, later.pred(&[9]).logits().await.unwrap());
            assert_eq!((now.len().unwrap(), long.len()), (4, 257));
            now.pred(&[9]).blocking().prefill().await.unwrap();
            let failed = now.pred(&[9]).blocking().at(&[3]).argmax().await;
            assert_eq!(failed.unwrap_err().errno, Errno::EINVAL);
            drop(now.pred(&[9]).blocking().argmax());
            assert_eq!(now.len().unwrap(), 6);
        })
    });
    assert_eq!((seen.tickets_left, seen.cancelled), (0, 0));
}
