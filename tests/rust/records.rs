//! The fixtures of `fixtures/records` and `fixtures/contracts` as the core reads them: parsed, written
//! again to the same bytes and hash, and refused with the code that the fixture names. Python's
//! `tests/test_records.py` and `tests/test_contracts.py` tell the same story of the other language.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use holdfast_core::canonical::{from_text, to_bytes};
use holdfast_core::content::{Salt, Seed, commit};
use holdfast_core::contracts::hook::{HookClass, HookPoint, HookSpec};
use holdfast_core::error::Coded;
use holdfast_core::records::{
    Body, KINDS, ReadError, Record, VERSION, contract_names, genesis, read, read_contract,
};
use serde_json::Value;

fn fixtures(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder)
}

fn load(path: &Path) -> Value {
    from_text(&std::fs::read(path).unwrap()).unwrap()
}

fn all(folder: &str) -> Vec<(String, Value)> {
    let mut found: Vec<_> = std::fs::read_dir(fixtures(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), load(&path)))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn rows<'a>(fixture: &'a Value, list: &str) -> &'a [Value] {
    fixture[list].as_array().unwrap()
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap()
}

/// The record of a text, if this build knows its version and kind.
fn known(text: &[u8]) -> Result<Record, String> {
    let record = Record::parse(text).map_err(|error: ReadError| error.code().as_str().to_owned())?;
    if record.v > VERSION {
        return Err("newer_format".to_owned());
    }
    if matches!(record.body, Body::Unknown(..)) { Err("unknown_kind".to_owned()) } else { Ok(record) }
}

#[test]
fn every_kind_and_contract_has_fixtures() {
    let mut kinds: BTreeSet<String> = KINDS.iter().map(|kind| kind.token.to_owned()).collect();
    kinds.insert("x.acme.shipped".to_owned());
    let fix = "run: python -m fixtures.make";
    assert_eq!(all("records").into_iter().map(|(kind, _)| kind).collect::<BTreeSet<_>>(), kinds, "{fix}");
    let contracts: BTreeSet<String> = contract_names().iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        all("contracts").into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>(),
        contracts,
        "{fix}"
    );
}

#[test]
fn good_records_are_read_and_written_to_the_same_bytes_and_hash() {
    for (kind, fixture) in all("records") {
        for good in rows(&fixture, "good") {
            let stored = text(good, "bytes").as_bytes();
            let record = known(stored).unwrap_or_else(|code| panic!("{kind} {}: {code}", good["name"]));
            assert_eq!(record.kind(), kind);
            assert_eq!(record.bytes().unwrap(), stored, "{kind}");
            assert_eq!(record.hash().unwrap().to_string(), text(good, "hash"), "{kind}");
            assert_eq!(to_bytes(&good["record"]).unwrap(), stored, "{kind}");
        }
    }
}

#[test]
fn bad_records_are_refused_with_the_code_of_the_fixture() {
    for (kind, fixture) in all("records") {
        for bad in rows(&fixture, "refused") {
            let code = known(&to_bytes(&bad["record"]).unwrap()).map(|record| record.kind().to_owned());
            assert_eq!(code, Err(text(bad, "code").to_owned()), "{kind} {}", bad["name"]);
        }
    }
}

#[test]
fn contracts_are_read_written_and_refused_as_the_fixtures_say() {
    for (name, fixture) in all("contracts") {
        for good in rows(&fixture, "good") {
            let written = read_contract(&name, &good["value"]).unwrap();
            assert_eq!(
                to_bytes(&written).unwrap(),
                text(good, "bytes").as_bytes(),
                "{name} {}",
                good["name"]
            );
        }
        for bad in rows(&fixture, "refused") {
            let code = read_contract(&name, &bad["value"]).map_err(|error| error.code().as_str());
            assert_eq!(code, Err(text(bad, "code")), "{name} {}", bad["name"]);
        }
    }
}

#[test]
fn hooks_may_declare_what_the_matrix_of_the_source_allows() {
    let spec = load(&fixtures("contracts/hook_spec.json"));
    for bad in rows(&spec, "invalid") {
        let spec: HookSpec = read(&bad["value"]).unwrap();
        let code = spec.validate().map_err(|error| error.code().as_str());
        assert_eq!(code, Err(text(bad, "code")), "{}", bad["name"]);
    }
    let matrix = load(&fixtures("hooks/matrix.json"));
    assert_eq!((HookPoint::ALL.len(), HookClass::ALL.len()), (22, 20));
    for (point, row) in HookPoint::ALL.iter().zip(rows(&matrix, "points")) {
        assert_eq!(point.as_str(), text(row, "point"));
        assert_eq!(Value::Bool(point.is_security_critical()), row["security"], "{point}");
        for (class, token) in HookClass::ALL.iter().zip(rows(&matrix, "classes")) {
            assert_eq!(class.as_str(), token.as_str().unwrap());
            assert_eq!(point.permits(*class), rows(row, "allowed").contains(token), "{point} {class}");
        }
    }
}

/// A line of the worked example in docs/FORMAT.md.
fn shown(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FORMAT.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("\n{name}:\n  ")).unwrap_or_else(|| panic!("no {name}"));
    rest.lines().next().unwrap().to_owned()
}

#[test]
fn the_worked_example_of_the_format_is_what_the_core_computes() {
    let salt: [u8; 16] = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let seed = Seed(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    let value = from_text(shown("value").as_bytes()).unwrap();
    assert_eq!(commit(Salt(salt), shown("value").as_bytes()).to_string(), shown("commit"));
    assert_eq!(seed.call_digest("tool", "refund", &value).unwrap().to_string(), shown("call_digest"));
    let first = genesis(shown("store").parse().unwrap(), shown("stream").parse().unwrap());
    assert_eq!(first.to_string(), shown("prev of the stream's first record"));
    let record = known(shown("canonical bytes of the record").as_bytes()).unwrap();
    assert_eq!(record.hash().unwrap().to_string(), shown("hash of the record"));
    assert_eq!(record.contents()[0].commit.to_string(), shown("commit"));
}
