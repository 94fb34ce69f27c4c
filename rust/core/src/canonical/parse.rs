//! JSON text to pushed values: strict RFC 8259 grammar, I-JSON strings and numbers, all limits.
//! Recursion is bounded by `DEPTH_MAX`; nothing is built here, a [`Sink`] builds.

use super::error::{CanonicalError, Refusal, push_index, push_key};
use super::number::{self, Number};
use super::writer::Writer;
use crate::limits;

/// Where parsed values go: canonical bytes, a tree, Python objects.
pub trait Sink {
    fn null(&mut self) -> Result<(), Refusal>;
    fn boolean(&mut self, value: bool) -> Result<(), Refusal>;
    fn int(&mut self, value: i64) -> Result<(), Refusal>;
    fn float(&mut self, value: f64) -> Result<(), Refusal>;
    fn string(&mut self, value: &str) -> Result<(), Refusal>;
    fn begin_array(&mut self) -> Result<(), Refusal>;
    fn begin_object(&mut self) -> Result<(), Refusal>;
    /// Must refuse a key that the object already has (at the latest at its end).
    fn key(&mut self, key: &str) -> Result<(), Refusal>;
    fn end(&mut self) -> Result<(), Refusal>;
}

impl Sink for Writer {
    fn null(&mut self) -> Result<(), Refusal> {
        Writer::null(self)
    }
    fn boolean(&mut self, value: bool) -> Result<(), Refusal> {
        Writer::boolean(self, value)
    }
    fn int(&mut self, value: i64) -> Result<(), Refusal> {
        Writer::int(self, value)
    }
    fn float(&mut self, value: f64) -> Result<(), Refusal> {
        Writer::float(self, value)
    }
    fn string(&mut self, value: &str) -> Result<(), Refusal> {
        Writer::string(self, value)
    }
    fn begin_array(&mut self) -> Result<(), Refusal> {
        Writer::begin_array(self)
    }
    fn begin_object(&mut self) -> Result<(), Refusal> {
        Writer::begin_object(self)
    }
    fn key(&mut self, key: &str) -> Result<(), Refusal> {
        Writer::key(self, key)
    }
    fn end(&mut self) -> Result<(), Refusal> {
        Writer::end(self)
    }
}

/// Reads one JSON document into `sink`.
pub fn parse<S: Sink>(text: &[u8], sink: &mut S) -> Result<(), CanonicalError> {
    let fail = |refusal| CanonicalError { refusal, path: "$".to_owned() };
    if text.len() > limits::JSON_BYTES_MAX {
        return Err(fail(Refusal::TooLarge));
    }
    let text = std::str::from_utf8(text)
        .map_err(|e| fail(Refusal::Syntax { what: "bytes that are not UTF-8", offset: e.valid_up_to() }))?;
    let mut parser = Parser { text, at: 0, steps: Vec::new(), values: 0, sink, decoded: String::new() };
    parser.document().map_err(|refusal| CanonicalError { refusal, path: parser.path() })
}

/// JSON text in canonical form.
pub fn canonical_text(text: &[u8]) -> Result<Vec<u8>, CanonicalError> {
    let mut writer = Writer::new();
    parse(text, &mut writer)?;
    Ok(writer.into_bytes())
}

/// Whether `text` is the canonical form of what it says.
pub fn is_canonical(text: &[u8]) -> Result<bool, CanonicalError> {
    Ok(canonical_text(text)? == text)
}

/// A step of the path to the value being read: where a key stands in the text, or an index.
enum Step {
    Key(usize),
    Index(usize),
}

struct Parser<'t, 's, S> {
    text: &'t str,
    at: usize,
    steps: Vec<Step>,
    values: usize,
    sink: &'s mut S,
    decoded: String,
}

impl<S: Sink> Parser<'_, '_, S> {
    fn document(&mut self) -> Result<(), Refusal> {
        self.value()?;
        self.space();
        if self.at < self.text.len() { Err(self.syntax("something after the value")) } else { Ok(()) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn syntax(&self, what: &'static str) -> Refusal {
        Refusal::Syntax { what, offset: self.at }
    }

    fn path(&self) -> String {
        let mut path = String::from("$");
        for step in &self.steps {
            match step {
                Step::Index(index) => push_index(&mut path, *index),
                Step::Key(at) => {
                    let mut decoded = String::new();
                    let mut end = *at;
                    if read_string(self.text, &mut end, &mut decoded).is_ok() {
                        push_key(&mut path, &decoded);
                    }
                }
            }
        }
        path
    }

    fn value(&mut self) -> Result<(), Refusal> {
        self.space();
        self.values += 1;
        if self.values > limits::JSON_VALUES_MAX {
            return Err(Refusal::TooManyValues);
        }
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => {
                self.string()?;
                self.sink.string(&self.decoded)
            }
            Some(b't') => self.word("true").and_then(|()| self.sink.boolean(true)),
            Some(b'f') => self.word("false").and_then(|()| self.sink.boolean(false)),
            Some(b'n') => self.word("null").and_then(|()| self.sink.null()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.syntax("no value")),
            None => Err(self.syntax("the text ends early")),
        }
    }

    fn word(&mut self, word: &str) -> Result<(), Refusal> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.syntax("no value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn string(&mut self) -> Result<(), Refusal> {
        self.decoded.clear();
        read_string(self.text, &mut self.at, &mut self.decoded)
    }

    fn digits(&mut self) -> Result<(), Refusal> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == from { Err(self.syntax("a digit is missing")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), Refusal> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        match number::read(&self.text[from..self.at])? {
            Number::Int(n) => self.sink.int(n),
            Number::Float(x) => self.sink.float(x),
        }
    }

    fn enter(&mut self) -> Result<(), Refusal> {
        if self.steps.len() >= limits::DEPTH_MAX {
            return Err(Refusal::TooDeep);
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self) -> Result<(), Refusal> {
        self.enter()?;
        self.sink.begin_array()?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return self.sink.end();
        }
        let mut index = 0;
        loop {
            self.steps.push(Step::Index(index));
            self.value()?;
            self.steps.pop();
            index += 1;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.syntax("',' or ']' is missing")),
            }
        }
        self.at += 1;
        self.sink.end()
    }

    fn object(&mut self) -> Result<(), Refusal> {
        self.enter()?;
        self.sink.begin_object()?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return self.sink.end();
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.syntax("a key is missing"));
            }
            self.steps.push(Step::Key(self.at));
            self.string()?;
            self.sink.key(&self.decoded)?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.syntax("':' is missing"));
            }
            self.at += 1;
            self.value()?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.syntax("',' or '}' is missing")),
            }
            self.steps.pop();
        }
        self.at += 1;
        // The last key stays on the path while the sink looks for keys that stand twice.
        self.sink.end()?;
        self.steps.pop();
        Ok(())
    }
}

/// Decodes the string that begins at `at` (its opening quote) and moves `at` behind it.
pub(super) fn read_string(text: &str, at: &mut usize, out: &mut String) -> Result<(), Refusal> {
    let bytes = text.as_bytes();
    let mut from = *at + 1;
    loop {
        let run = bytes[from..].iter().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1F));
        let Some(run) = run else {
            return Err(Refusal::Syntax { what: "a string does not end", offset: text.len() });
        };
        out.push_str(&text[from..from + run]);
        from += run;
        match bytes[from] {
            b'"' => {
                *at = from + 1;
                return Ok(());
            }
            b'\\' => from = read_escape(text, from, out)?,
            _ => return Err(Refusal::Syntax { what: "a control character in a string", offset: from }),
        }
    }
}

/// Decodes the escape at `at` and returns where the text goes on.
fn read_escape(text: &str, at: usize, out: &mut String) -> Result<usize, Refusal> {
    let bad = Refusal::Syntax { what: "a bad escape", offset: at };
    let plain = match text.as_bytes().get(at + 1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => {
            let unit = read_unit(text, at).ok_or(bad)?;
            if let Some(c) = char::from_u32(unit) {
                out.push(c);
                return Ok(at + 6);
            }
            let low = read_unit(text, at + 6).filter(|low| (0xDC00..0xE000).contains(low));
            let pair =
                low.filter(|_| unit < 0xDC00).map(|low| 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00));
            out.push(pair.and_then(char::from_u32).ok_or(Refusal::LoneSurrogate)?);
            return Ok(at + 12);
        }
        _ => return Err(bad),
    };
    out.push(plain);
    Ok(at + 2)
}

/// The code unit of `\uXXXX` at `at`.
fn read_unit(text: &str, at: usize) -> Option<u32> {
    let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
    if digits.bytes().all(|b| b.is_ascii_hexdigit()) { u32::from_str_radix(digits, 16).ok() } else { None }
}
