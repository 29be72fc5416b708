//! Sessions against generations and passes made by hand.

use super::*;
use crate::decode::Sampler;
use crate::testing::{Host, Seen, EOS};
use crate::{block_on, join_all};

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
    let seeded = Plan::new(12).exact(true).sampler(Sampler::new(1.0, Some(5)));
    play(Host::new(), || async {
        for plan in [seeded.clone(), seeded.clone().sampler(Sampler::Greedy)] {
            let mut whole = Session::new("hello")?;
            let said = whole.reply(&plan).await?;
            assert_eq!((said.tokens.len(), said.finish), (12, Finish::Length));

            let mut streamed = Session::new("hello")?;
            let mut pieces = String::new();
            let same = streamed.stream(&plan, |piece| {
                pieces.push_str(piece);
                Ok(())
            });
            let same = same.await?;
            assert_eq!((same.tokens, &same.text), (said.tokens, &pieces));
            assert!((same.logprob - said.logprob).abs() < 1e-9 && said.logprob < 0.0);

            let mut parts = Session::new("hello")?;
            for _ in 0..3 {
                parts.reply(&plan.clone().max_tokens(4)).await?;
            }
            assert_eq!(parts.tokens(), whole.tokens());
            // A reply behind a reply computes the other's last token, as a prompt of one.
            for (session, prefilled) in [(&mut whole, 5), (&mut streamed, 5), (&mut parts, 7)] {
                assert_eq!(session.usage(), Usage { prefilled, generated: 12 });
                session.finish().await?;
                let held = session.kv().tokens(0..session.kv().len()?)?;
                assert_eq!(held, session.tokens());
            }
        }
        Ok(())
    });
}

#[test]
fn an_end_is_no_part_of_the_text_and_an_exact_plan_knows_none() {
    play(reciting("ab\ncd"), || async {
        let mut session = Session::new("x")?;
        let reply = session.reply(&Plan::new(9)).await?;
        assert_eq!(reply.tokens, bytes("ab\ncd"));
        assert_eq!((reply.text.as_str(), reply.finish), ("ab\ncd", Finish::Token(EOS)));
        assert_eq!(session.tokens(), bytes("xab\ncd"));
        // Nothing was said since, so the last token is looked at once more.
        let reply = session.reply(&Plan::new(9)).await?;
        assert_eq!((reply.tokens.len(), reply.finish), (0, Finish::Token(EOS)));
        assert_eq!(session.tokens(), bytes("xab\ncd"));

        let mut session = Session::new("x")?;
        let reply = session.reply(&Plan::new(9).stop("\n")).await?;
        assert_eq!((reply.text.as_str(), session.tokens()), ("ab", &bytes("xab")[..]));
        assert_eq!(session.reply(&Plan::new(3).stop("d")).await?.text, "\nc");
        session.say("d")?;
        assert_eq!(session.reply(&Plan::new(3)).await?.finish, Finish::Token(EOS));
        assert_eq!(session.kv().tokens(0..6)?, bytes("xab\ncd"));

        let mut session = Session::new("x")?;
        let exact = Plan::new(7).stop("\n").exact(true);
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
        let plan = Plan::new(4).exact(true);
        let said = session.fan_out(8, |i, mut branch| {
            let plan = plan.branch(i);
            async move {
                branch.say(&alloc::format!("{}", i))?;
                Ok((i, branch.reply(&plan).await?.tokens.len(), branch.tokens().len()))
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
                branch.say(["one ", "two ", "three "][i])?;
                branch.reply(&Plan::new(2).exact(true)).await.map(|_| branch)
            })
            .await?;
        let mut merged = session.merge(&mut branches[1..]).await?;
        let parts: Vec<&[u32]> = branches.iter().map(|branch| &branch.tokens()[6..]).collect();
        let expected = [&bytes("trunk ")[..], parts[1], parts[2]].concat();
        assert_eq!(merged.tokens(), expected);
        assert_eq!(merged.kv().tokens(0..expected.len() as u32)?, expected);
        merged.say("!")?;
        assert_eq!(merged.reply(&Plan::new(3).exact(true)).await?.tokens.len(), 3);
        let alone = session.merge(&mut []).await?;
        assert_eq!(alone.tokens(), session.tokens());
        Ok(())
    });
}

#[test]
fn what_a_rewrite_has_in_common_is_kept() {
    play(Host::new(), || async {
        let mut session = Session::new("one two three")?;
        session.finish().await?;
        assert_eq!(session.rewrite(&bytes("one two four"))?, 8);
        assert_eq!(session.kv().len()?, 8);
        session.finish().await?;
        assert_eq!(session.kv().tokens(0..12)?, bytes("one two four"));
        assert_eq!(session.rewrite(&bytes("one"))?, 2); // a pass needs a token to look at
        assert_eq!((session.rewrite(&[])?, session.kv().len()?), (0, 0));
        assert_eq!(session.reply(&Plan::new(1)).await.unwrap_err().errno, Errno::EINVAL);
        Ok(())
    });
}

#[test]
fn a_session_goes_on_where_a_file_ends() {
    play(Host::new(), || async {
        let mut first = Session::new("hello")?;
        let plan = Plan::new(6).exact(true);
        let expected = first.fork()?.reply(&plan).await?.tokens;
        first.finish().await?;
        let mut copy = Session::copy(first.kv())?;
        assert_eq!(copy.reply(&plan).await?.tokens, expected);
        let mut same = Session::of(first.kv().fork()?)?;
        assert_eq!(same.reply(&plan).await?.tokens, expected);
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
fn plans_of_branches_draw_apart_and_repeat() {
    let draw = |seed| {
        let mut all = Vec::new();
        play(Host::new(), || async {
            let mut session = Session::new("a")?;
            let plan = Plan::new(6).exact(true).sampler(Sampler::new(2.0, Some(seed)));
            let forks = [session.fork()?, session.fork()?];
            session.settle().await?;
            let said = join_all(forks.into_iter().enumerate().map(|(i, mut fork)| {
                let plan = plan.branch(i);
                async move { fork.reply(&plan).await }
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
