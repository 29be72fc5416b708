use super::*;

/// Drafts for a prompt, whose plain tokens take 10 ms each.
fn drafts(prompt: &[u32], longest: usize) -> Drafts {
    let mut drafts = Drafts::new(prompt, longest, 1_000, 100);
    drafts.count_plain(80, 8);
    drafts
}

fn count_passes(drafts: &mut Drafts, ms: u64, drafted: usize, accepted: usize) {
    (0..JUDGED_PASSES).for_each(|_| drafts.count_pass(ms, drafted, accepted));
}

#[test]
fn draft_is_what_followed_the_same_tokens() {
    let mut drafts = drafts(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 4);
    assert!(drafts.draft(9).is_empty(), "two tokens are too few");
    drafts.push(3);
    assert_eq!(drafts.draft(9), [4, 5, 6]);
    drafts.push(4);
    assert_eq!(drafts.draft(9), [5, 6, 7, 8]);
    assert_eq!(drafts.draft(2), [5, 6]);
    assert!(drafts.draft(0).is_empty());
    drafts.push(9);
    assert!(drafts.draft(9).is_empty(), "the texts differ now");
}

#[test]
fn the_latest_place_counts_and_the_one_that_agreed_longest() {
    let mut later = drafts(&[1, 2, 3, 4, 8, 1, 2, 3, 5, 8, 1, 2, 3], 1);
    assert_eq!(later.draft(9), [5]);
    // Here the first place has agreed for four tokens when the second one is as good for three.
    later = drafts(&[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 7, 1, 2], 1);
    assert_eq!(later.draft(9), [3]);
    later.push(3);
    assert_eq!(later.draft(9), [4]);
}

#[test]
fn repetition_is_drafted_beyond_the_end() {
    let drafts = drafts(&[5, 6, 5, 6, 5, 6, 5], 12);
    assert_eq!(drafts.draft(6), [6, 5, 6, 5, 6]);
    assert_eq!(drafts.draft(3), [6, 5, 6]);
}

#[test]
fn drafts_are_as_long_as_they_are_usually_right() {
    let long: Vec<u32> = (0..60).chain(0..50).collect();
    let mut drafts = drafts(&long, 64);
    let mut lengths = Vec::new();
    for right in [100, 100, 100, 0, 0, 0] {
        let length = drafts.draft(64).len();
        drafts.count_pass(10, length, length.min(right));
        lengths.push(length);
    }
    assert_eq!(lengths, [7, 11, 17, 27, 15, 9]);
}

#[test]
fn other_tokens_of_the_same_hash_are_no_match() {
    // Four slots for fifty places.
    let mut crowded = Drafts::new(&[1], 4, 1_000, 1);
    crowded.count_plain(80, 8);
    for token in 0..50 {
        crowded.push(token);
        assert!(crowded.draft(4).is_empty());
    }
}

#[test]
fn there_is_no_draft_before_the_time_without_one_is_known() {
    let mut drafts = Drafts::new(&[1, 2, 3, 4, 1, 2, 3], 4, 1_000, 100);
    assert!(drafts.draft(4).is_empty());
    drafts.count_plain(40, TIMED_TOKENS);
    assert_eq!(drafts.draft(4), [4, 1, 2]);
}

#[test]
fn drafts_that_take_longer_need_more() {
    let mut drafts = drafts(&[1, 2, 3, 4, 1, 2, 3], 4);
    // A pass of four rows gives two tokens: in 19 ms it pays, in 20 ms it does not.
    count_passes(&mut drafts, 19, 3, 1);
    assert_eq!(drafts.needed, MATCH);
    assert!(!drafts.draft(4).is_empty());
    count_passes(&mut drafts, 20, 3, 1);
    assert_eq!(drafts.needed, 2 * MATCH);
    assert!(drafts.draft(4).is_empty());
    (0..9).for_each(|_| count_passes(&mut drafts, 20, 3, 1));
    assert_eq!(drafts.needed, NEEDED_MAX);
    assert!(!drafts.is_near());
    // A long repetition is still found, and brings the short ones back.
    (0..NEEDED_MAX as u32 + 8).for_each(|at| drafts.push([4, 1, 2, 3][at as usize % 4]));
    assert_eq!(drafts.draft(2).len(), 2);
    (0..6).for_each(|_| count_passes(&mut drafts, 19, 3, 3));
    assert_eq!(drafts.needed, MATCH);
}

#[test]
fn without_times_acceptance_decides() {
    let mut drafts = Drafts::new(&[1, 2, 3], 4, 1_000, 100);
    count_passes(&mut drafts, 0, 4, 2);
    assert_eq!(drafts.needed, MATCH);
    count_passes(&mut drafts, 0, 4, 1);
    assert_eq!(drafts.needed, 2 * MATCH);
}

#[test]
fn passes_without_a_draft_alone_are_not_judged() {
    let mut drafts = drafts(&[1, 2, 3], 4);
    count_passes(&mut drafts, 1_000, 0, 0);
    assert_eq!(drafts.needed, MATCH);
}

#[test]
fn tokens_in_vain_are_bounded() {
    let mut drafts = Drafts::new(&[1, 2, 3, 4, 1, 2, 3], 4, 10, 100);
    drafts.count_plain(80, 8);
    drafts.count_pass(10, 3, 0);
    drafts.count_wasted(5);
    assert_eq!(drafts.draft(4).len(), 2);
    drafts.count_wasted(5);
    assert!(drafts.draft(4).is_empty());
    assert_eq!((drafts.drafted, drafts.accepted), (3, 0));
}
