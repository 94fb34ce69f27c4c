//! The audit of a bundle's stream: what is whole passes, and the first thing that is not is named.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::chain::read_all;
use holdfast_core::content::{Commit, Openings};
use holdfast_core::error::Coded;
use holdfast_core::evidence::{
    BundleError, Facts, Hash, Proof, Range, StreamAudit, StreamReport, frame_leaf, inclusion, line, root_of,
    spell_hash,
};
use holdfast_core::ids::StreamId;
use holdfast_core::records::Record;
use holdfast_core::run::Command;
use serde_json::json;
use world::*;

/// A finished run: its records' texts and what opens their contents.
fn story() -> (Vec<Vec<u8>>, Openings) {
    let (mut world, claim) = World::claimed();
    let patch = value(json!({"n": 1, "who": "dana"}));
    world.ask(worker("w1"), Command::Patch { claim, patch, expected_version: 0, call: None }).unwrap();
    let result = Some(value(json!("done")));
    let done = Command::Complete { claim, expected_version: None, result, patch: None };
    world.ask(worker("w1"), done).unwrap();
    (world.texts(), world.journal.openings.clone())
}

/// What stands beside a record, as a line has it.
fn beside(text: &[u8], openings: &Openings) -> String {
    let own: BTreeSet<Commit> =
        Record::parse(text).unwrap().contents().into_iter().map(|content| content.commit).collect();
    let kept: BTreeMap<_, _> = openings.iter().filter(|(commit, _)| own.contains(commit)).collect();
    String::from_utf8(holdfast_core::canonical::to_bytes(&kept).unwrap()).unwrap()
}

fn stream() -> StreamId {
    StreamId::Run(run_id(1))
}

fn audit(
    texts: &[Vec<u8>],
    openings: &Openings,
    proof: Option<(Proof, u64, Hash)>,
) -> Result<StreamReport, BundleError> {
    audit_beside(texts, proof, |text| beside(text, openings))
}

fn audit_beside(
    texts: &[Vec<u8>],
    proof: Option<(Proof, u64, Hash)>,
    contents: impl Fn(&[u8]) -> String,
) -> Result<StreamReport, BundleError> {
    let mut audit = StreamAudit::new(store_id(), stream(), Arc::default());
    if let Some((proof, size, root)) = proof {
        audit.prove(proof, size, &root)?;
    }
    for text in texts {
        audit.frame(&contents(text), read_all(&[text.as_slice()]), None)?;
    }
    audit.end(&BTreeSet::new())
}

/// A tree whose last leaf is the stream's frame that ends with a record.
fn proven(texts: &[Vec<u8>], last: usize) -> (Proof, u64, Hash) {
    let head = Record::parse(&texts[last]).unwrap().hash().unwrap();
    let seq = u64::try_from(last).unwrap() + 1;
    let leaves: Vec<Hash> =
        (0..4u8).map(|n| [n; 32]).chain([frame_leaf(stream(), seq, seq, &head)]).collect();
    let nodes = |level: u32, n: u64| -> Result<Hash, ()> {
        let mut range = Range::default();
        let (low, size) = (usize::try_from(n << level).map_err(|_| ())?, 1usize << level);
        leaves.get(low..low + size).ok_or(())?.iter().for_each(|leaf| range.push(*leaf, |_, _, _| {}));
        Ok(range.root())
    };
    let (size, leaf) = (5, 4);
    let path = inclusion(&nodes, leaf, size).unwrap().iter().map(spell_hash).collect();
    (Proof { first_seq: seq, head, last_seq: seq, leaf, path }, size, root_of(&nodes, size).unwrap())
}

fn code(done: Result<StreamReport, BundleError>) -> &'static str {
    done.expect_err("it was to be found").code().as_str()
}

#[test]
fn a_whole_stream_passes_and_its_facts_are_its_own() {
    let (texts, openings) = story();
    let last = texts.len() - 1;
    let report = audit(&texts, &openings, Some(proven(&texts, last))).unwrap();
    assert_eq!((report.records, report.sealed), (last as u64 + 1, last as u64 + 1));
    assert_eq!(report.facts.state, Some(json!({"n": 1, "who": "dana"})));
    assert_eq!(report.facts.check(&report.facts.clone()), Ok(()));
    for forged in [
        Facts { state: Some(json!({"n": 2})), ..report.facts.clone() },
        Facts { end: None, ..report.facts.clone() },
        Facts { records: 1, ..report.facts.clone() },
    ] {
        assert!(matches!(report.facts.check(&forged), Err(BundleError::Facts(_))));
    }
}

#[test]
fn a_proof_of_what_is_not_in_the_stream_is_refused() {
    let (texts, openings) = story();
    let (proof, size, root) = proven(&texts, texts.len() - 1);
    let cut = &texts[..texts.len() - 1];
    assert_eq!(code(audit(cut, &openings, Some((proof.clone(), size, root)))), "proof_invalid");
    let elsewhere = Proof { leaf: 3, ..proof.clone() };
    assert_eq!(code(audit(&texts, &openings, Some((elsewhere, size, root)))), "proof_invalid");
    assert_eq!(code(audit(&texts, &openings, Some((proof, size, [9; 32])))), "proof_invalid");
}

#[test]
fn a_content_is_there_as_it_was_or_erased_or_named_as_lost() {
    let (texts, openings) = story();
    let mut lost = openings.clone();
    let commit = *openings.keys().next().unwrap();
    lost.remove(&commit);
    assert_eq!(code(audit(&texts, &lost, None)), "content_lost");
    let forged = |text: &[u8]| beside(text, &openings).replace("dana", "evil");
    assert_eq!(code(audit_beside(&texts, None, forged)), "content_forged");
    let stray = |_: &[u8]| beside(&texts[0], &openings);
    assert_eq!(code(audit_beside(&texts, None, stray)), "bundle_altered");
    assert_eq!(code(audit_beside(&texts, None, |_| "[]".to_owned())), "bundle_altered");
}

#[test]
fn only_a_line_of_the_one_form_is_a_frame() {
    assert_eq!(line(br#"{"contents":{"a":"}"},"records":[{}]}"#), Some((r#"{"a":"}"}"#, &b"[{}]"[..])));
    for bad in [
        "",
        "{}",
        r#"{"contents":{}}"#,
        r#"{"contents":{} ,"records":[]}"#,
        r#"{"contents":[],"records":[]}"#,
        r#"{"records":[],"contents":{}}"#,
        r#"{"contents":{},"records":[]"#,
    ] {
        assert_eq!(line(bad.as_bytes()), None, "{bad}");
    }
}
