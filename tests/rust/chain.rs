//! The chain of a stream: any change to the past shows, and the first bad record is named.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::chain::{ChainError, verify};
use holdfast_core::content::{Opening, Openings};
use holdfast_core::error::Coded;
use holdfast_core::ids::StreamId;
use holdfast_core::journal::Journal;
use holdfast_core::records::{Record, WaitOn, genesis};
use holdfast_core::run::Command;
use proptest::prelude::*;
use serde_json::json;
use world::*;

/// A finished run of a dozen records.
fn story() -> (Vec<Vec<u8>>, Openings) {
    let (mut world, claim) = World::claimed();
    for version in 0..3 {
        let patch = value(json!({"n": version, "who": "dana"}));
        world
            .ask(worker("w1"), Command::Patch { claim, patch, expected_version: version, call: None })
            .unwrap();
        world.tick(7);
    }
    let waits = vec![wait_for(WaitOn::Signal, Some("go"), None)];
    world.ask(worker("w1"), Command::Wait { claim, waits }).unwrap();
    world.ask(dana(), Command::Signal { name: name("go"), payload: value(json!(true)) }).unwrap();
    let claim = world.claim(1, "w2").unwrap();
    let result = Some(value(json!("done")));
    world
        .ask(worker("w2"), Command::Complete { claim, expected_version: None, result, patch: None })
        .unwrap();
    (world.texts(), world.journal.openings.clone())
}

fn audit(texts: &[Vec<u8>], openings: &Openings) -> Result<u64, ChainError> {
    let state = Journal::audit(store_id(), run_id(1), texts, openings, None, None)?;
    Ok(state.map_or(0, |state| state.head().seq))
}

fn code(texts: &[Vec<u8>]) -> (u64, &'static str) {
    let error = audit(texts, &Openings::new()).expect_err("it was to be found");
    (error.seq, error.code().as_str())
}

#[test]
fn an_untouched_stream_verifies_with_and_without_its_contents() {
    let (texts, openings) = story();
    assert_eq!(audit(&texts, &openings), Ok(12));
    assert_eq!(audit(&texts, &Openings::new()), Ok(12));
    let slices = texts.iter().map(Vec::as_slice);
    let head = verify(store_id(), StreamId::Run(run_id(1)), slices, None).unwrap();
    assert_eq!(head.hash, Record::parse(&texts[11]).unwrap().hash().unwrap());
    let first = Record::parse(&texts[0]).unwrap();
    assert_eq!(first.prev, genesis(store_id(), StreamId::Run(run_id(1))));
}

#[test]
fn removed_added_swapped_and_foreign_records_are_named() {
    let (texts, _) = story();
    for at in 0..texts.len() - 1 {
        let mut removed = texts.clone();
        removed.remove(at);
        assert_eq!(code(&removed), (at as u64 + 1, "record_missing"));
        let mut twice = texts.clone();
        twice.insert(at, texts[at].clone());
        assert_eq!(code(&twice), (at as u64 + 2, "record_missing"));
        let mut swapped = texts.clone();
        swapped.swap(at, at + 1);
        assert_eq!(code(&swapped), (at as u64 + 1, "record_missing"));
    }
    let mut other = World::empty();
    let steps = vec![new_step(1, &[])];
    other.ask(dana(), Command::Create { run: Box::new(new_run(2)), steps }).unwrap();
    let mut foreign = texts.clone();
    foreign[1] = other.texts()[1].clone();
    assert_eq!(code(&foreign), (2, "record_moved"));
}

#[test]
fn a_record_that_was_altered_and_hashed_anew_breaks_the_next_link() {
    let (texts, _) = story();
    for at in 0..texts.len() - 1 {
        let mut record = Record::parse(&texts[at]).unwrap();
        record.by.id = name("mallory");
        let mut altered = texts.clone();
        altered[at] = record.bytes().unwrap();
        let (seq, found) = code(&altered);
        assert!(seq <= at as u64 + 2, "found at {seq}, altered at {}", at + 1);
        assert!(["chain_broken", "record_illegal"].contains(&found), "{found}");
    }
}

#[test]
fn a_forged_content_is_found_and_an_erased_one_is_not_an_error() {
    let (texts, openings) = story();
    for commit in openings.keys() {
        let mut forged = openings.clone();
        let salt = forged[commit].salt;
        forged.insert(*commit, Opening { salt, value: json!({"n": 1_000_000}) });
        assert_eq!(audit(&texts, &forged).expect_err("forged").code().as_str(), "content_forged");
        let mut erased = openings.clone();
        erased.remove(commit);
        assert_eq!(audit(&texts, &erased), Ok(12));
    }
}

#[test]
fn a_chain_without_an_outside_head_cannot_show_that_its_end_is_missing() {
    let (texts, openings) = story();
    assert_eq!(audit(&texts[..6], &openings), Ok(6), "why seals are kept elsewhere");
    let head = |texts: &[Vec<u8>], kept| {
        Journal::audit(store_id(), run_id(1), texts, &openings, None, Some(kept))
            .map(|_| ())
            .map_err(|e| e.code().as_str())
    };
    let kept = Record::parse(&texts[11]).unwrap().hash().unwrap();
    assert_eq!(head(&texts, kept), Ok(()));
    assert_eq!(head(&texts[..6], kept), Err("head_mismatch"));
    let mut rewritten = texts.clone();
    let mut last = Record::parse(&texts[11]).unwrap();
    last.by.id = name("mallory");
    rewritten[11] = last.bytes().unwrap();
    assert_eq!(head(&rewritten, kept), Err("head_mismatch"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every single-byte change of the journal's text is found, and nothing panics on the way.
    #[test]
    fn any_changed_byte_is_found(at in 0usize..10_000, to in any::<u8>()) {
        let (mut texts, openings) = story();
        let total: usize = texts.iter().map(Vec::len).sum();
        let mut at = at % total;
        let mut place = 0;
        while at >= texts[place].len() {
            at -= texts[place].len();
            place += 1;
        }
        let before = texts[place][at];
        texts[place][at] = to;
        let found = audit(&texts, &openings);
        let last = place == texts.len() - 1;
        if before == to {
            prop_assert_eq!(found, Ok(12));
        } else if !last {
            let error = found.expect_err("a changed byte");
            prop_assert!(error.seq == place as u64 + 1 || error.seq == place as u64 + 2);
        }
        // A change in the newest record that leaves it well-formed is only seen against a head kept elsewhere.
    }

    /// Any bytes given as a record end in a record or a typed error.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(record) = Record::parse(&bytes) {
            prop_assert_eq!(record.bytes().unwrap(), bytes);
        }
    }
}
