//! A guest whose entries try the SDK on a real worker. What is not as it should be panics, which the
//! run's log tells.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use symphony::kv::{Advice, Rights, Save};
use symphony::pred::{Choice, TokenSet};
use symphony::process::{self, Child, Level, PARENT};
use symphony::{
    join_all, json, model, msgpack, select, spawn, timeout, Either, Errno, Error, KvFile, Sampling,
    Session, Value,
};

type Result = symphony::Result<()>;

symphony::entry!("values", values);
symphony::entry!("files", async files);
symphony::entry!("passes", async passes);
symphony::entry!("streams", async streams);
symphony::entry!("children", async children);
symphony::entry!("child", async child);
symphony::entry!("channels", async channels);
symphony::entry!("lockstep", async lockstep);
symphony::entry!("dropped", async dropped);
symphony::entry!("stopped", async stopped);
symphony::entry!("chats", async chats);
symphony::entry!("panics", panics);
symphony::entry!("fails", fails);
symphony::entry!("exits", exits);
symphony::entry!("deadlock", async deadlock);

fn errno<T>(result: symphony::Result<T>) -> Option<Errno> {
    result.err().map(|error: Error| error.errno)
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[symphony::main]
async fn own_process() -> Result {
    let started = process::clock_ms();
    process::sleep(ms(20)).await?;
    assert!(process::clock_ms() - started >= 19);
    assert!(process::unix_ms() > 1_700_000_000_000);
    assert_ne!(process::random_u64()?, process::random_u64()?);
    process::log(Level::Debug, "finer");
    symphony::log!(Warning, "{} things", 2);
    while let Some(message) = process::recv_open().await? {
        process::send(message)?;
    }
    process::send(process::input_text())
}

/// Sends the input back: MessagePack as MessagePack and JSON, JSON as MessagePack.
fn values() -> Result {
    let input = process::input();
    match input.split_first() {
        Some((b'm', bytes)) => match msgpack::decode(bytes) {
            Ok(value) => {
                process::send(msgpack::encode(&value))?;
                process::send(json::encode(&value))
            }
            Err(error) => process::send(format!("{}", error)),
        },
        Some((_, text)) => match json::decode(text) {
            Ok(value) => process::send(msgpack::encode(&value)),
            Err(error) => process::send(format!("{}", error)),
        },
        None => Ok(()),
    }
}

async fn files() -> Result {
    let kv = KvFile::create()?;
    kv.prefill(&[5, 6, 7, 8, 9]).await?;
    let fork = kv.fork()?;
    fork.truncate(2)?;
    fork.append(&kv, 3..5)?;
    assert_eq!(fork.tokens(0..4)?, [5, 6, 8, 9]);
    let cut = kv.extract(&[0..1, 3..4])?;
    assert_eq!((cut.len()?, cut.tokens(0..2)?), (2, vec![5, 8]));
    let stat = kv.stat()?;
    assert_eq!((stat.len, stat.rights, stat.path), (5, Rights::ALL, None));
    assert_eq!((stat.pages, stat.expires_ms), (1, None));

    kv.save("probe/a", Save::NEW)?;
    assert_eq!(errno(cut.save("probe/a", Save::NEW)), Some(Errno::EEXIST));
    cut.save("probe/b", Save::NEW)?;
    let listed = KvFile::list("probe/")?;
    let names: Vec<(&str, u32)> = listed.iter().map(|f| (f.path.as_str(), f.len)).collect();
    assert_eq!(names, [("probe/a", 5), ("probe/b", 2)]);
    let after = KvFile::list_after("probe/", "probe/a", 10)?;
    assert_eq!(after.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["probe/b"]);
    assert_eq!(KvFile::list_after("probe/", "", 1)?[0].path, "probe/a");
    assert_eq!(errno(KvFile::list_after("", "", 0)), Some(Errno::EINVAL));
    assert_eq!((listed[0].durable, listed[0].public, listed[0].expires_ms), (false, false, None));
    let view = KvFile::open_with("probe/a", Rights::READ)?;
    assert_eq!(view.stat()?.rights, Rights::READ);
    assert_eq!(errno(view.truncate(1)), Some(Errno::EACCES));
    assert_eq!(errno(view.prefill(&[1]).await), Some(Errno::EACCES));
    KvFile::remove("probe/a")?;
    KvFile::remove("probe/b")?;
    assert_eq!(errno(KvFile::open("probe/a")), Some(Errno::ENOENT));
    assert_eq!(view.tokens(4..5)?, [9]);

    let long: Vec<u32> = (0..40).collect();
    assert!(KvFile::matching(&long)?.is_none());
    let text = KvFile::create()?;
    text.prefill(&long).await?;
    assert_eq!(text.offer()?, 32);
    assert_eq!(KvFile::matching(&long)?.map(|known| known.len()), Some(Ok(32)));
    assert_eq!(KvFile::matching(&long[..32])?.map(|known| known.len()), Some(Ok(16)));
    assert!(KvFile::matching(&long[..16])?.is_none());
    assert_eq!(errno(fork.offer()), Some(Errno::EINVAL));

    for advice in [Advice::Keep(5), Advice::WillNeed, Advice::DoNotNeed, Advice::Priority(7)] {
        kv.advise(advice)?;
    }
    kv.advise(Advice::Normal)?;
    assert_eq!(errno(kv.advise(Advice::Priority(8))), Some(Errno::EINVAL));
    assert_eq!(errno(kv.save("probe/c", Save::DURABLE)), Some(Errno::ENOSYS));
    let handle = kv.handle();
    kv.close()?;
    assert_eq!(errno(KvFile::from_handle(handle).len()), Some(Errno::EBADF));
    Ok(())
}

fn same(a: Choice, b: Choice) {
    assert_eq!(a.token, b.token);
    assert!((a.logprob - b.logprob).abs() < 1e-4, "{:?} {:?}", a, b);
}

async fn passes() -> Result {
    let base = KvFile::create()?;
    base.prefill(&model::tokenize("def f(x):")?).await?;
    let look = || base.pred(&[3]).keep(false);
    let best = look().argmax().await?;
    let top = look().top(4).await?;
    same(best, top[0]);
    assert!(top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
    assert_eq!(look().of(&[top[2].token, best.token]).await?, [top[2].logprob, best.logprob]);
    let logits = look().logits().await?;
    assert_eq!(logits.len() as u32, model::info()?.vocab_size);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(logits[best.token as usize], max);

    let mut only = TokenSet::none(logits.len() as u32);
    only.insert(top[3].token);
    assert_eq!(look().allowed_tokens(&only).argmax().await?.token, top[3].token);
    assert_eq!(look().logit_bias(&[(top[1].token, 1e4)]).argmax().await?.token, top[1].token);
    let drawn = Sampling::new().temperature(1.5).top_k(50).seed(9);
    same(look().sample(&drawn).await?, look().sample(&drawn).await?);

    // A penalty for the best token, in a pass and in a generation.
    let mut seen = TokenSet::none(logits.len() as u32);
    seen.insert(best.token);
    let (plain, penalty) = (logits[best.token as usize], 1000.0);
    let changed = look().repetition_penalty(&seen, penalty).logits().await?;
    let wanted = if plain > 0.0 { plain / penalty } else { plain * penalty };
    assert!((changed[best.token as usize] - wanted).abs() <= 1e-3 * wanted.abs());
    let next = look().repetition_penalty(&seen, penalty).argmax().await?;
    assert_ne!(next.token, best.token);
    let penalized = exactly(1).repetition_penalty(seen, penalty);
    let fork = base.fork()?;
    same(fork.stream(&[3], &penalized).rest().await?[0], next);

    // The last hidden state, of one place and of several.
    let (tokens, size) = ([3, 4, 5], model::info()?.hidden_size as usize);
    let states = base.pred(&tokens).keep(false).all().hidden().await?;
    assert!(states.len() == 3 && states.iter().all(|state| state.len() == size));
    let last = base.pred(&tokens).keep(false).hidden().await?;
    assert!(last.iter().zip(&states[2]).all(|(a, b)| (a - b).abs() < 1e-3));
    assert!(last.iter().any(|number| *number != 0.0));
    let biased = look().logit_bias(&[(1, 1.0)]).hidden().await;
    assert_eq!(errno(biased), Some(Errno::EINVAL));

    // Several places in one pass, and the same tokens one by one in a fork.
    let tokens = [3, 4, 5];
    let at_once = base.pred(&tokens).keep(false).all().argmax().await?;
    let chosen = base.pred(&tokens).keep(false).at(&[2, 0]).top(1).await?;
    same(chosen[0][0], at_once[2]);
    same(chosen[1][0], at_once[0]);
    let fork = base.fork()?;
    for (token, expected) in tokens.iter().zip(&at_once) {
        same(fork.pred(&[*token]).argmax().await?, *expected);
    }

    // A tree scores what forks would.
    let tree = base.pred(&[3, 4, 4, 5]).parents(&[-1, -1, 0, 1]).keep(false).all().argmax().await?;
    same(tree[2], at_once[1]);
    let branch = base.fork()?;
    same(branch.pred(&[4, 5]).argmax().await?, tree[3]);
    let start = base.len()?;
    let placed = base.pred(&tokens).positions(&[start, start + 1, start + 2]).argmax().await?;
    same(placed, at_once[2]);
    Ok(())
}

/// So many tokens, regardless of their text.
fn exactly(count: usize) -> Sampling {
    Sampling::new().max_tokens(count).exact(true)
}

async fn streams() -> Result {
    let seeded = exactly(20).temperature(1.5).seed(9).lookahead(3);
    let kv = KvFile::create()?;
    kv.prefill(&[7, 8]).await?;
    let loops = kv.fork()?;
    let streams = kv.fork()?;
    let all = streams.stream(&[9], &seeded).rest().await?;
    let mut next = 9;
    for choice in &all {
        let looped = loops.pred(&[next]).sample(&seeded).await?;
        same(looped, *choice);
        next = choice.token;
    }
    assert_eq!((all.len(), streams.len()?), (20, 2 + 1 + 19));
    assert_eq!(streams.tokens(0..22)?, loops.tokens(0..22)?);

    // The tenant has no such adapter.
    assert_eq!(errno(loops.pred(&[9]).adapter("none").argmax().await), Some(Errno::ENOENT));
    let mut none = loops.stream(&[9], &exactly(3).adapter("none"));
    assert_eq!(errno(none.next().await), Some(Errno::ENOENT));

    // Four at once, each taken as it comes, beside a sleep that ends first.
    let branches = (0..4u32).map(|i| async move {
        let kv = KvFile::create()?;
        let mut stream = kv.stream(&[i], &exactly(30));
        let mut count = 0;
        while stream.next().await?.is_some() {
            count += 1;
        }
        symphony::Result::Ok((count, kv.len()?))
    });
    assert!(join_all(branches).await.into_iter().all(|ended| ended == Ok((30, 30))));

    // Busy while it goes on; cancelled, the file says what was appended.
    let mut stream = kv.stream(&[9], &Sampling::new().exact(true).lookahead(2));
    assert_eq!(errno(kv.len()), Some(Errno::EBUSY));
    let first = stream.next().await?.map(|choice| choice.token);
    process::sleep(ms(20)).await?;
    stream.cancel();
    let length = kv.len()?;
    assert!((3..=6).contains(&length), "{}", length);
    kv.truncate(3)?;
    let again = kv.stream(&[first.unwrap()], &exactly(1)).rest().await?;
    assert_eq!(again.len(), 1);
    let refused = kv.stream(&[], &Sampling::new()).rest().await;
    assert_eq!(errno(refused), Some(Errno::EINVAL));

    // What a pass has computed is not computed again where both share.
    let prompt: Vec<u32> = (0..40).collect();
    for (shares, cached) in [(false, 0), (true, 0), (true, 32), (false, 0)] {
        let kv = KvFile::create()?;
        kv.pred(&prompt).share(shares).argmax().await?;
        assert_eq!(kv.stat()?.cached, cached);
    }
    let kv = KvFile::create()?;
    kv.stream(&prompt, &exactly(2).share(true)).rest().await?;
    assert_eq!(kv.stat()?.cached, 32);
    Ok(())
}

async fn children() -> Result {
    let kv = KvFile::create()?;
    kv.prefill(&[7, 8, 9]).await?;
    let child = Child::new()
        .entry("child")
        .input("seed")
        .grant(&kv, Rights::READ | Rights::APPEND, "base")
        .start()
        .await?;
    let ended = child.join().await?;
    assert_eq!(ended.code, 3);
    process::send(ended.output)?;
    let made = KvFile::granted("made")?;
    assert_eq!(made.tokens(0..2)?, [1, 2]);
    assert_eq!(errno(KvFile::granted("none")), Some(Errno::ENOENT));
    assert_eq!(errno(Child::new().entry("nowhere").start().await), Some(Errno::ENOENT));
    Ok(())
}

async fn child() -> symphony::Result<i32> {
    let base = KvFile::granted("base")?;
    assert_eq!(errno(base.truncate(0)), Some(Errno::EACCES));
    let made = KvFile::create()?;
    made.prefill(&[1, 2]).await?;
    made.grant(PARENT, Rights::READ, "made")?;
    process::send(format!("{}:{:?}", process::input_text(), base.tokens(0..3)?))?;
    Ok(3)
}

async fn channels() -> Result {
    let receiver = spawn(async {
        let first = process::channel_recv("probe").await?;
        let second = process::channel_recv("probe").await?;
        symphony::Result::Ok([first, second].concat())
    });
    process::channel_send("probe", "one")?;
    process::channel_send("probe", "two")?;
    assert_eq!(receiver.await?, b"onetwo");
    Ok(())
}

/// As many tasks as the input says; each decodes five tokens.
async fn lockstep() -> Result {
    let tasks: u32 = process::input_text().parse().unwrap();
    let branches = (0..tasks).map(|i| async move {
        let kv = KvFile::create()?;
        let mut choice = kv.pred(&[1 + i % 250]).argmax().await?;
        for _ in 0..4 {
            choice = kv.pred(&[choice.token]).argmax().await?;
        }
        kv.len()
    });
    assert!(join_all(branches).await.into_iter().all(|length| length == Ok(5)));
    Ok(())
}

async fn dropped() -> Result {
    drop(process::sleep(ms(60_000)));
    let kv = KvFile::create()?;
    drop(kv.pred(&[1, 2, 3]).argmax());
    let quick = select(process::sleep(ms(5)), process::sleep(ms(60_000))).await;
    assert!(matches!(quick, Either::Left(Ok(()))));
    assert_eq!(timeout(ms(5), process::recv()).await?, None);
    spawn(async {
        let _kv = KvFile::create();
        process::sleep(ms(60_000)).await
    })
    .cancel();
    drop(spawn(async { process::sleep(ms(60_000)).await }));
    Ok(())
}

/// The first of three branches ends; what the others had computed by then counts, and goes.
async fn stopped() -> Result {
    let mut session = Session::new("some text")?;
    let mut running = session
        .fan_out_as_completed(3, |i, mut branch| async move {
            let said = branch.reply(&exactly([6, 300, 300][i])).await?;
            Ok(said.tokens.len())
        })
        .await?;
    assert_eq!(running.next().await.map(|(i, count)| (i, count.unwrap())), Some((0, 6)));
    drop(running);
    let usage = session.usage();
    assert_eq!(usage.prefilled, 8 + 3);
    assert!((6 + 2 * 3..300).contains(&usage.generated), "{:?}", usage);
    let again = session.reply(&exactly(6)).await?;
    assert_eq!((again.tokens.len(), session.kv().len()?), (6, 9 + 5));
    Ok(())
}

/// A second turn goes on where the first one's reply ends.
async fn chats() -> Result {
    let mut chat = Session::chat("be brief")?;
    chat.user("hi")?;
    assert_eq!(chat.render()?, 0);
    chat.reply(&exactly(3)).await?;
    let first = chat.tokens().len();
    chat.user("there")?;
    let known = chat.render()?;
    assert!(known > 0 && known <= first && chat.tokens().len() > first);
    chat.reply(&exactly(3)).await?;
    assert_eq!(chat.turns()?.messages.len(), 5);
    Ok(())
}

fn panics() -> Result {
    panic!("{} broke", "this")
}

fn fails() -> core::result::Result<(), String> {
    let known = Value::Nil.get("nothing").is_some();
    if known {
        Ok(())
    } else {
        Err("no such thing".into())
    }
}

fn exits() {
    process::exit(7)
}

async fn deadlock() {
    type Slot = Rc<RefCell<Option<symphony::Task<()>>>>;
    let slot: Slot = Rc::default();
    let inner = slot.clone();
    *slot.borrow_mut() = Some(spawn(async move {
        let me = inner.borrow_mut().take();
        if let Some(me) = me {
            me.await
        }
    }));
    core::future::pending::<()>().await;
}
