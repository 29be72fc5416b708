//! Sessions against generations and passes made by hand.

use super::*;
use crate::testing::{Host, Seen, EOS};
use crate::{block_on, join_all};

/// So many tokens, whatever they are.
fn exactly(count: usize) -> Sampling {
    Sampling::new().max_tokens(count).exact(true)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn play<B: Future<Output = Result<()>>>(host: Host, program: impl FnOnce() -> B) -> Seen {
    let (outcome, seen) = host.observe(|| block_on(program()));
    outcome.unwrap().unwrap();
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    seen
}

/// A model that says `text` behind a first token, and then ends.
fn reciting(text: &'static str) -> Host {
    Host::new().model(move |history| {
        let mut logits = alloc::vec![0.0; 257];
        logits[text.as_bytes().get(history.len() - 1).map_or(256, |b| usize::from(*b))] = 20.0;
        logits
    })
}

#[test]
fn replies_are_what_a_generation_says_however_they_are_cut() {
    let seeded = exactly(12).temperature(1.0).seed(5);
    play(Host::new(), || async {
        for sampling in [seeded.clone(), exactly(12)] {
            let mut whole = Session::new("hello")?;
            let said = whole.reply(&sampling).await?;
            assert_eq!((said.tokens.len(), said.finish), (12, Finish::Length));

            let mut streamed = Session::new("hello")?;
            let mut pieces = String::new();
            let same = streamed.stream(&sampling, |piece| {
                pieces.push_str(piece);
                Ok(())
            });
            let same = same.await?;
            assert_eq!((same.tokens, &same.text), (said.tokens, &pieces));
            assert!((same.logprob - said.logprob).abs() < 1e-9 && said.logprob < 0.0);

            let mut parts = Session::new("hello")?;
            for _ in 0..3 {
                parts.reply(&sampling.clone().max_tokens(4)).await?;
            }
            assert_eq!(parts.tokens(), whole.tokens());
            // A reply behind a reply computes the other's last token, as a prompt of one.
            for (session, prefilled) in [(&mut whole, 5), (&mut streamed, 5), (&mut parts, 7)] {
                assert_eq!(session.usage(), Usage { prefilled, generated: 12 });
                session.flush().await?;
                let held = session.kv().tokens(0..session.kv().len()?)?;
                assert_eq!(held, session.tokens());
            }
        }
        Ok(())
    });
}

#[test]
fn an_end_is_no_part_of_the_text_and_exact_sampling_knows_none() {
    play(reciting("ab\ncd"), || async {
        let mut session = Session::new("x")?;
        let reply = session.reply(&Sampling::new().max_tokens(9)).await?;
        assert_eq!(reply.tokens, bytes("ab\ncd"));
        assert_eq!((reply.text.as_str(), reply.finish), ("ab\ncd", Finish::Token(EOS)));
        assert_eq!(session.tokens(), bytes("xab\ncd"));
        // Nothing was said since, so the last token is looked at once more.
        let reply = session.reply(&Sampling::new().max_tokens(9)).await?;
        assert_eq!((reply.tokens.len(), reply.finish), (0, Finish::Token(EOS)));
        assert_eq!(session.tokens(), bytes("xab\ncd"));

        let mut session = Session::new("x")?;
        let reply = session.reply(&Sampling::new().max_tokens(9).stop("\n")).await?;
        assert_eq!((reply.text.as_str(), session.tokens()), ("ab", &bytes("xab")[..]));
        assert_eq!(session.reply(&Sampling::new().max_tokens(3).stop("d")).await?.text, "\nc");
        session.append("d")?;
        assert_eq!(session.reply(&Sampling::new().max_tokens(3)).await?.finish, Finish::Token(EOS));
        assert_eq!(session.kv().tokens(0..6)?, bytes("xab\ncd"));

        let mut session = Session::new("x")?;
        let exact = exactly(7).stop("\n");
        assert_eq!(
            session.reply(&exact).await?.tokens,
            [&bytes("ab\ncd")[..], &[EOS, EOS]].concat()
        );
        assert_eq!(session.reply(&exact.max_tokens(0)).await?.tokens, []);
        Ok(())
    });
}

#[test]
fn branches_share_the_prefix_and_every_step_computes_all_of_them() {
    let seen = play(Host::new(), || async {
        let mut session = Session::new("a common beginning")?;
        let sampling = exactly(4);
        let said = session.fan_out(8, |i, mut branch| {
            let sampling = sampling.branch(i);
            async move {
                branch.append(&alloc::format!("{}", i))?;
                Ok((i, branch.reply(&sampling).await?.tokens.len(), branch.tokens().len()))
            }
        });
        assert_eq!(said.await?, (0..8).map(|i| (i, 4, 18 + 1 + 4)).collect::<Vec<_>>());
        assert_eq!(session.usage(), Usage { prefilled: 17 + 8 * 2, generated: 32 });
        Ok(())
    });
    assert_eq!(seen.passes_per_wait, [1, 8, 8, 8, 8, 0]); // at last, that there is no more
}

#[test]
fn a_merge_is_the_prefix_and_what_each_branch_added() {
    play(Host::new(), || async {
        let mut session = Session::new("trunk ")?;
        let mut branches = session
            .fan_out(3, |i, mut branch| async move {
                branch.append(["one ", "two ", "three "][i])?;
                branch.reply(&exactly(2)).await.map(|_| branch)
            })
            .await?;
        let mut merged = session.merge(&mut branches[1..]).await?;
        let parts: Vec<&[u32]> = branches.iter().map(|branch| &branch.tokens()[6..]).collect();
        let expected = [&bytes("trunk ")[..], parts[1], parts[2]].concat();
        assert_eq!(merged.tokens(), expected);
        assert_eq!(merged.kv().tokens(0..expected.len() as u32)?, expected);
        merged.append("!")?;
        assert_eq!(merged.reply(&exactly(3)).await?.tokens.len(), 3);
        let alone = session.merge(&mut []).await?;
        assert_eq!(alone.tokens(), session.tokens());
        Ok(())
    });
}

#[test]
fn what_a_rewrite_has_in_common_is_kept() {
    play(Host::new(), || async {
        let mut session = Session::new("one two three")?;
        session.flush().await?;
        assert_eq!(session.rewrite(&bytes("one two four"))?, 8);
        assert_eq!(session.kv().len()?, 8);
        session.flush().await?;
        assert_eq!(session.kv().tokens(0..12)?, bytes("one two four"));
        assert_eq!(session.rewrite(&bytes("one"))?, 2); // a pass needs a token to look at
        assert_eq!((session.rewrite(&[])?, session.kv().len()?), (0, 0));
        assert_eq!(
            session.reply(&Sampling::new().max_tokens(1)).await.unwrap_err().errno,
            Errno::EINVAL
        );
        Ok(())
    });
}

#[test]
fn a_session_goes_on_where_a_file_ends() {
    play(Host::new(), || async {
        let mut first = Session::new("hello")?;
        let sampling = exactly(6);
        let expected = first.fork()?.reply(&sampling).await?.tokens;
        first.flush().await?;
        let mut copy = Session::copy(first.kv())?;
        assert_eq!(copy.reply(&sampling).await?.tokens, expected);
        let mut same = Session::of(first.kv().fork()?)?;
        assert_eq!(same.reply(&sampling).await?.tokens, expected);
        assert_eq!(first.kv().len()?, 5);
        Ok(())
    });
}

#[test]
fn scores_are_the_sums_of_the_tokens_own_and_leave_no_trace() {
    play(Host::new(), || async {
        let mut session = Session::new("some text")?;
        let answers = ["yes", "no", "", "yesno"];
        let tree = session.score(" ok?", &answers).await?;
        let long = "y".repeat(300);
        let chains =
            session.score(" ok?", &[answers[0], answers[1], "", answers[3], &long]).await?;
        for i in 0..4 {
            let tokens = bytes(&["some text ok?", answers[i]].concat());
            let kv = KvFile::create()?;
            let next = kv.pred(&tokens).all().of(&tokens).await?;
            let expected: f64 = (13..tokens.len()).map(|t| f64::from(next[t - 1][t])).sum();
            assert!((tree[i] - expected).abs() < 1e-4 && (chains[i] - expected).abs() < 1e-4);
        }
        assert!(chains[4] < chains[0]);
        assert_eq!((session.tokens(), session.kv().len()?), (&bytes("some text")[..], 8));
        Ok(())
    });
}

#[test]
fn sampling_of_branches_draw_apart_and_repeat() {
    let draw = |seed| {
        let mut all = Vec::new();
        play(Host::new(), || async {
            let mut session = Session::new("a")?;
            let sampling = exactly(6).temperature(2.0).seed(seed);
            let forks = [session.fork()?, session.fork()?];
            session.prefill().await?;
            let said = join_all(forks.into_iter().enumerate().map(|(i, mut fork)| {
                let sampling = sampling.branch(i);
                async move { fork.reply(&sampling).await }
            }));
            all = said.await.into_iter().map(|reply| reply.unwrap().tokens).collect();
            Ok(())
        });
        all
    };
    let first = draw(3);
    assert_ne!(first[0], first[1]);
    assert_eq!(first, draw(3));
    assert_ne!(first, draw(4));
}

#[test]
fn a_chat_renders_its_turns_and_computes_only_what_is_new() {
    // It answers `k`, which the template renders as the same token.
    let host = Host::new().model(|history| {
        let mut logits = alloc::vec![0.0; 257];
        logits[if history.ends_with(&[107]) { 256 } else { 107 }] = 9.0;
        logits
    });
    let seen = play(host, || async {
        let mut chat = Session::chat("be kind")?;
        chat.user("hi")?;
        let sampling = Sampling::new().max_tokens(5);
        assert_eq!(chat.reply(&sampling).await?.text, "k");
        let first = "<system>be kind\n<user>hi\n<assistant>";
        assert_eq!(chat.tokens(), bytes(&[first, "k"].concat()));
        chat.user("there")?;
        assert_eq!(chat.render()?, first.len() + 1);
        let second = [first, "k\n<user>there\n<assistant>"].concat();
        assert_eq!(chat.tokens(), bytes(&second));

        // The answer begins as the program says, and goes on; both are the assistant's turn.
        chat.append("o")?;
        chat.reply(&sampling).await?;
        assert_eq!(chat.turns()?.messages[4].content, "ok");
        chat.turns()?.messages.truncate(2);
        let fork = chat.fork()?;
        assert_eq!(chat.render()?, first.len() - 1);
        drop(fork);
        chat.turn("tool", "7")?;
        chat.flush().await?;
        assert_eq!(chat.tokens(), bytes(&first.replace("<ass", "<tool>7\n<ass")));
        Ok(())
    });
    assert_eq!(seen.passes_per_wait.iter().sum::<usize>(), 2 + 2 + 1);
}

#[test]
fn a_text_of_its_own_has_no_turns() {
    play(Host::new(), || async {
        let mut text = Session::new("some")?;
        let refused = text.user("hi").unwrap_err();
        assert_eq!((refused.call, refused.errno), ("chat", Errno::EINVAL));
        let mut chat = Session::new("")?;
        chat.user("hi")?;
        chat.prefill().await?;
        assert_eq!(chat.tokens(), bytes("<user>hi\n<assistant>"));
        let mut branches = chat.fan_out(2, |_, branch| async move { Ok(branch) }).await?;
        let merged = chat.merge(&mut branches).await?;
        assert_eq!(merged.tokens(), chat.tokens());
        Ok(())
    });
}

#[test]
fn branches_are_seen_as_they_end_and_the_rest_is_stopped_and_counted() {
    let seen = play(Host::new(), || async {
        let mut session = Session::new("a common beginning")?;
        let mut running = session
            .fan_out_as_completed(4, |i, mut branch| async move {
                let tokens = branch.reply(&exactly([40, 2, 30, 5][i])).await?.tokens;
                Ok(tokens.len())
            })
            .await?;
        for expected in [(1, 2), (3, 5)] {
            assert_eq!(running.next().await.map(|(i, n)| (i, n.unwrap())), Some(expected));
        }
        assert_eq!(running.running(), 2);
        drop(running);
        // The two that were stopped had computed a prompt of one token, and a token in each step.
        let Usage { prefilled, generated } = session.usage();
        assert_eq!(prefilled, 17 + 4);
        assert!((7 + 2 * 5..=7 + 2 * 7).contains(&generated), "{}", generated);
        Ok(())
    });
    assert_eq!(seen.cancelled, 2);
}

#[test]
fn a_stream_that_fails_is_counted_and_leaves_the_text_as_it_was() {
    play(Host::new(), || async {
        let mut session = Session::new("hello")?;
        let mut pieces = 0;
        let sampling = exactly(50).lookahead(0);
        let stopped = session.stream(&sampling, |_| {
            pieces += 1;
            if pieces == 3 {
                Err(Error::new("enough", Errno::ECANCELED))
            } else {
                Ok(())
            }
        });
        assert_eq!(stopped.await.unwrap_err().call, "enough");
        let usage = session.usage();
        assert!(usage.prefilled == 5 && (3..10).contains(&usage.generated), "{:?}", usage);
        assert_eq!((session.kv().len()?, session.tokens()), (0, &bytes("hello")[..]));
        let whole = Session::new("hello")?.reply(&exactly(4)).await?;
        assert_eq!(session.reply(&exactly(4)).await?.tokens, whole.tokens);
        Ok(())
    });
}
