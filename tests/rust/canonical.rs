//! Canonical bytes from outside: the vectors that Python reads too, and properties over any value,
//! any way to write it down and any bytes at all.
//!
//! The vectors were made by somebody else's encoder (`fixtures/make_canonical.py`).

use std::path::Path;

use holdfast_core::canonical::{
    CanonicalError, Writer, canonical_text, from_text, is_canonical, to_bytes, write_value,
};
use holdfast_core::error::Coded;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde::Deserialize;
use serde_json::{Map, Number, Value};

/// A line of `examples.json`, `numbers.json` or `refusals.json`.
#[derive(Deserialize)]
struct Vector {
    name: String,
    input: Option<String>,
    input_hex: Option<String>,
    bytes: Option<String>,
    error: Option<String>,
    path: Option<String>,
}

/// A line of `doubles.json`.
#[derive(Deserialize)]
struct Double {
    hex: String,
    text: Option<String>,
    error: Option<String>,
}

/// Reads a fixture with somebody else's reader: ours is what is being tested.
#[allow(clippy::disallowed_methods)]
fn fixture<T: for<'de> Deserialize<'de>>(name: &str) -> Result<Vec<T>, Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/canonical").join(name);
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

impl Vector {
    fn text(&self) -> Result<Vec<u8>, std::num::ParseIntError> {
        match (&self.input, &self.input_hex) {
            (Some(text), _) => Ok(text.clone().into_bytes()),
            (None, hex) => {
                let hex = hex.as_deref().unwrap_or_default();
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect()
            }
        }
    }
}

/// The bytes of a tree, by the push writer.
fn pushed(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut writer = Writer::new();
    match write_value(&mut writer, value) {
        Ok(()) => Ok(writer.into_bytes()),
        Err(refusal) => Err(CanonicalError { refusal, path: writer.path() }),
    }
}

#[test]
fn every_accepted_vector_has_its_bytes_by_every_way() {
    let mut seen = 0;
    for file in ["examples.json", "numbers.json"] {
        for vector in fixture::<Vector>(file).unwrap() {
            let (text, expected) = (vector.text().unwrap(), vector.bytes.unwrap().into_bytes());
            assert_eq!(canonical_text(&text), Ok(expected.clone()), "{}: from text", vector.name);
            let tree = from_text(&text).unwrap();
            assert_eq!(pushed(&tree), Ok(expected.clone()), "{}: from a tree", vector.name);
            assert_eq!(to_bytes(&tree), Ok(expected.clone()), "{}: from serde", vector.name);
            assert_eq!(is_canonical(&expected), Ok(true), "{}: its own bytes", vector.name);
            assert_eq!(is_canonical(&text), Ok(text == expected), "{}: its text", vector.name);
            seen += 1;
        }
    }
    assert!(seen > 90, "only {seen} vectors were read");
}

#[test]
fn every_refused_vector_gives_its_code_and_path() {
    let vectors = fixture::<Vector>("refusals.json").unwrap();
    assert!(vectors.len() > 70, "only {} vectors were read", vectors.len());
    for vector in vectors {
        let text = vector.text().unwrap();
        let (written, read) = (canonical_text(&text).unwrap_err(), from_text(&text).unwrap_err());
        for error in [written, read] {
            assert_eq!(Some(error.code().as_str()), vector.error.as_deref(), "{}: {error}", vector.name);
            if vector.path.is_some() {
                assert_eq!(Some(error.path), vector.path, "{}", vector.name);
            }
        }
    }
}

#[test]
fn every_double_has_the_text_that_ecmascript_gives_it() {
    let doubles = fixture::<Double>("doubles.json").unwrap();
    assert!(doubles.len() > 400, "only {} doubles were read", doubles.len());
    for Double { hex, text, error } in doubles {
        let number = f64::from_bits(u64::from_str_radix(&hex, 16).unwrap());
        match to_bytes(&number) {
            Ok(bytes) => {
                assert_eq!(Some(String::from_utf8(bytes.clone()).unwrap()), text, "{hex}");
                assert_eq!(canonical_text(&bytes), Ok(bytes), "{hex} is read back");
            }
            Err(refused) => assert_eq!(Some(refused.code().as_str()), error.as_deref(), "{hex}"),
        }
    }
}

/// Any JSON value: exact integers, all finite doubles, all characters, a few levels.
fn any_value() -> impl Strategy<Value = Value> {
    let exact = holdfast_core::limits::INTEGER_MAX;
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-exact..=exact).prop_map(Value::from),
        (-10i64..10).prop_map(Value::from),
        any::<u64>()
            .prop_filter_map("finite", |bits| Number::from_f64(f64::from_bits(bits)).map(Value::from)),
        ".{0,12}".prop_map(Value::from),
        any_key().prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any_key(), inner), 0..6).prop_map(|m| Value::from(Map::from_iter(m))),
        ]
    })
}

/// Keys with common starts, escapes and characters on both sides of the surrogates.
fn any_key() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "aaaaaaa",
        "12345678",
        "\0",
        "\n",
        "\"",
        "\\",
        "/",
        " ",
        "\u{7f}",
        "\u{80}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{ffff}",
        "\u{10000}",
        "\u{10ffff}",
    ]);
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// Equal as JSON: `1` and `1.0` are one number, and so are `0` and `-0`.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Writes a value down in one of the many ways that mean the same, as the dice fall.
struct Sloppy<'d> {
    dice: std::iter::Cycle<std::slice::Iter<'d, u8>>,
    out: String,
}

impl Sloppy<'_> {
    fn roll(&mut self, sides: u8) -> u8 {
        self.dice.next().map_or(0, |die| die % sides)
    }

    fn space(&mut self) {
        let space = ["", "", " ", "\n\t", "\r \n"][usize::from(self.roll(5))];
        self.out.push_str(space);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            let must = c < ' ' || c == '"' || c == '\\';
            match (self.roll(3), c) {
                (0, '/' | '"' | '\\') => self.out.extend(['\\', c]),
                (0, '\n') => self.out.push_str("\\n"),
                (1, c) if !must => self.out.push(c),
                (die, c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let hex = if die == 2 { format!("{unit:04X}") } else { format!("{unit:04x}") };
                        self.out.push_str("\\u");
                        self.out.push_str(&hex);
                    }
                }
            }
        }
        self.out.push('"');
    }

    fn number(&mut self, number: &Number) {
        let text = match (self.roll(3), number.as_i64(), number.as_f64()) {
            (0, Some(n), _) => format!("{n}.0"),
            (1, Some(n), _) => format!("{n}E+0"),
            (_, None, Some(x)) => format!("{x:e}"),
            _ => number.to_string(),
        };
        self.out.push_str(&text);
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::Null | Value::Bool(_) => self.out.push_str(&value.to_string()),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.out.push_str(if at > 0 { "," } else { "" });
                    self.value(item);
                }
                self.space();
                self.out.push(']');
            }
            Value::Object(members) => {
                let mut keys: Vec<_> = members.keys().map(|key| (self.roll(255), key)).collect();
                keys.sort_unstable();
                self.out.push('{');
                for (at, (_, key)) in keys.into_iter().enumerate() {
                    self.out.push_str(if at > 0 { "," } else { "" });
                    self.space();
                    self.string(key);
                    self.space();
                    self.out.push(':');
                    self.value(&members[key]);
                }
                self.space();
                self.out.push('}');
            }
        }
        self.space();
    }
}

/// What holds for any bytes that were accepted, and that anything else is refused with words.
fn is_consistent(text: &[u8]) -> TestCaseResult {
    match canonical_text(text) {
        Ok(bytes) => {
            prop_assert_eq!(canonical_text(&bytes), Ok(bytes.clone()));
            prop_assert_eq!(is_canonical(&bytes), Ok(true));
            prop_assert_eq!(pushed(&from_text(text)?), Ok(bytes));
        }
        Err(error) => {
            prop_assert!(!error.to_string().is_empty());
            prop_assert_eq!(from_text(text).map_err(|e| e.code()), Err(error.code()));
        }
    }
    Ok(())
}

proptest! {
    // Failures print their seed and smallest case; a file of them beside the sources would be noise.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_value_comes_back_from_its_bytes_and_its_bytes_do_not_change(value in any_value()) {
        let bytes = to_bytes(&value)?;
        prop_assert_eq!(&pushed(&value)?, &bytes);
        let back = from_text(&bytes)?;
        prop_assert!(same(&value, &back), "{:?} became {:?}", value, back);
        prop_assert_eq!(to_bytes(&back)?, bytes);
    }

    #[test]
    fn key_order_space_escapes_and_number_spelling_do_not_matter(
        value in any_value(),
        dice in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut sloppy = Sloppy { dice: dice.iter().cycle(), out: String::new() };
        sloppy.value(&value);
        let bytes = canonical_text(sloppy.out.as_bytes());
        prop_assert_eq!(bytes, Ok(to_bytes(&value)?), "written as {}", sloppy.out);
    }

    #[test]
    fn any_bytes_are_accepted_or_refused_but_never_panic(text in prop::collection::vec(any::<u8>(), 0..64)) {
        is_consistent(&text)?;
    }

    #[test]
    fn any_soup_of_tokens_is_accepted_or_refused_but_never_panics(
        tokens in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\"a\":", "\"\\u0061\"", "\\", "\\ud83d", "\\ude00", "\\u", "0", "-",
            "1", ".", "e", "E+", "9007199254740993", "true", "null", " ", "\n", "\u{0}", "\u{feff}", "\u{1f600}", "[1,", "]}",
        ]), 0..24),
    ) {
        is_consistent(tokens.concat().as_bytes())?;
    }
}
