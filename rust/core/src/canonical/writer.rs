//! The push writer. Whoever drives it says what comes next; it keeps commas, key order, escapes
//! and limits. Keys may come in any order: an object whose keys came unsorted is put in order when
//! it ends, so the caller that can push sorted keys pays nothing.

use std::cmp::Ordering;

use super::error::{Refusal, push_index, push_key};
use super::scan::{string_end, value_end};
use super::{number, parse};
use crate::limits;

/// One open array or object.
#[derive(Debug)]
struct Level {
    /// Where its opening bracket stands in `out`.
    start: usize,
    /// Where its own part of `names` begins.
    names: usize,
    count: usize,
    is_object: bool,
    sorted: bool,
    /// The key that came last.
    last: Option<Key>,
}

/// A key of an open object.
#[derive(Debug, Clone, Copy)]
struct Key {
    /// Its first eight bytes as a number that sorts like them; most comparisons end here.
    rank: u64,
    name: Name,
}

/// One member of an object whose keys came unsorted, and where `"key":value` stands in `out`.
#[derive(Debug, Clone, Copy)]
struct Member {
    key: Key,
    text: (usize, usize),
}

/// Where a raw key is kept: in the written text itself unless it had to be escaped there.
#[derive(Debug, Clone, Copy)]
enum Name {
    Text(usize, usize),
    Escaped(usize, usize),
}

/// Makes canonical bytes from pushed values.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
    /// Bytes before the document: the domain of a digest.
    prefix: usize,
    levels: Vec<Level>,
    /// The newest raw key of each open object that holds something to escape.
    names: Vec<u8>,
    scratch: Vec<u8>,
    order: Vec<Member>,
    values: usize,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a new document, keeping the buffers of the last one. With a domain, the bytes begin
    /// with its line and are ready to be hashed.
    pub fn reset(&mut self, domain: Option<&str>) {
        const KEEP: usize = 1 << 20;
        self.out.clear();
        if self.out.capacity() > KEEP {
            *self = Self { out: Vec::with_capacity(KEEP / 64), ..Self::default() };
        }
        if let Some(domain) = domain {
            self.out.extend_from_slice(domain.as_bytes());
            self.out.push(b'\n');
        }
        self.prefix = self.out.len();
        self.levels.clear();
        self.names.clear();
        self.values = 0;
    }

    /// The prefix and the document.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// The document, and the writer's end.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.out.drain(..self.prefix);
        self.out
    }

    /// Where the value that is pushed next, or the one just refused, stands.
    pub fn path(&self) -> String {
        let mut path = String::from("$");
        for level in &self.levels {
            if level.is_object {
                if let Some(key) = level.last {
                    push_key(&mut path, &String::from_utf8_lossy(raw(&self.out, &self.names, key)));
                }
            } else {
                push_index(&mut path, level.count.saturating_sub(1));
            }
        }
        path
    }

    #[inline]
    fn before_value(&mut self) -> Result<(), Refusal> {
        self.values += 1;
        if self.values > limits::JSON_VALUES_MAX {
            return Err(Refusal::TooManyValues);
        }
        if let Some(level) = self.levels.last_mut()
            && !level.is_object
        {
            if level.count > 0 {
                self.out.push(b',');
            }
            level.count += 1;
        }
        self.room_for(0)
    }

    fn room_for(&self, more: usize) -> Result<(), Refusal> {
        if self.out.len() - self.prefix + more > limits::JSON_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        Ok(())
    }

    pub fn null(&mut self) -> Result<(), Refusal> {
        self.before_value()?;
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    pub fn boolean(&mut self, value: bool) -> Result<(), Refusal> {
        self.before_value()?;
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    pub fn int(&mut self, value: i64) -> Result<(), Refusal> {
        self.before_value()?;
        number::write_int(&mut self.out, value)
    }

    pub fn float(&mut self, value: f64) -> Result<(), Refusal> {
        self.before_value()?;
        number::write_float(&mut self.out, value)
    }

    #[inline]
    pub fn string(&mut self, value: &str) -> Result<(), Refusal> {
        self.before_value()?;
        self.room_for(value.len())?;
        write_string(&mut self.out, value);
        self.room_for(0) // escapes may have made it up to six times as long
    }

    pub fn begin_array(&mut self) -> Result<(), Refusal> {
        self.begin(b'[', false)
    }

    pub fn begin_object(&mut self) -> Result<(), Refusal> {
        self.begin(b'{', true)
    }

    fn begin(&mut self, bracket: u8, is_object: bool) -> Result<(), Refusal> {
        self.before_value()?;
        if self.levels.len() >= limits::DEPTH_MAX {
            return Err(Refusal::TooDeep);
        }
        self.levels.push(Level {
            start: self.out.len(),
            names: self.names.len(),
            count: 0,
            is_object,
            sorted: true,
            last: None,
        });
        self.out.push(bracket);
        Ok(())
    }

    /// The key of the next value. Only between `begin_object` and its `end`.
    #[inline]
    pub fn key(&mut self, key: &str) -> Result<(), Refusal> {
        self.room_for(key.len())?;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let rank = key_rank(key.as_bytes());
        let mut repeated = false;
        if let Some(last) = level.last {
            let before = || raw(&self.out, &self.names, last);
            match last.rank.cmp(&rank).then_with(|| key_order(before(), key.as_bytes())) {
                Ordering::Less => {}
                Ordering::Equal => repeated = true,
                Ordering::Greater => level.sorted = false,
            }
            self.out.push(b',');
        }
        let text = self.out.len();
        let name = if write_string(&mut self.out, key) {
            Name::Text(text + 1, text + 1 + key.len())
        } else {
            self.names.truncate(level.names);
            self.names.extend_from_slice(key.as_bytes());
            Name::Escaped(level.names, self.names.len())
        };
        self.out.push(b':');
        level.last = Some(Key { rank, name });
        if repeated { Err(Refusal::DuplicateKey) } else { Ok(()) }
    }

    /// The key of the next value, by a caller that pushes an object's keys in [`key_rank`] and
    /// [`key_order`] order and knows that none stands twice. [`Writer::path`] does not know it.
    pub fn key_in_order(&mut self, key: &str) -> Result<(), Refusal> {
        self.room_for(key.len())?;
        if let Some(level) = self.levels.last_mut() {
            if level.count > 0 {
                self.out.push(b',');
            }
            level.count += 1;
        }
        write_string(&mut self.out, key);
        self.out.push(b':');
        self.room_for(0)
    }

    /// The same for a key that is written as it stands here, with its quotes and its colon.
    #[inline]
    pub(crate) fn literal_key(&mut self, quoted: &'static str) {
        if let Some(level) = self.levels.last_mut() {
            if level.count > 0 {
                self.out.push(b',');
            }
            level.count += 1;
        }
        self.out.extend_from_slice(quoted.as_bytes());
    }

    /// A string in which nothing has to be escaped, as its caller knows: an id, a digest, a token.
    #[inline]
    pub(crate) fn plain_string(&mut self, text: &str) -> Result<(), Refusal> {
        self.before_value()?;
        self.out.reserve(text.len() + 2);
        self.out.push(b'"');
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'"');
        Ok(())
    }

    /// Ends the innermost array or object.
    pub fn end(&mut self) -> Result<(), Refusal> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        if !level.sorted {
            self.sort_members()?;
        }
        if let Some(level) = self.levels.pop() {
            self.names.truncate(level.names);
            self.out.push(if level.is_object { b'}' } else { b']' });
        }
        self.room_for(0)
    }

    /// Puts the members of the innermost object in order and finds keys that stand twice. Where each of
    /// them stands is read from the text: only here somebody asks for it.
    fn sort_members(&mut self) -> Result<(), Refusal> {
        let Some(body) = self.levels.last().map(|level| level.start + 1) else { return Ok(()) };
        self.find_members(body);
        let raw = |m: &Member| raw(&self.out, &self.names, m.key);
        self.order
            .sort_unstable_by(|a, b| a.key.rank.cmp(&b.key.rank).then_with(|| key_order(raw(a), raw(b))));
        let twice = self.order.windows(2).find(|pair| raw(&pair[0]) == raw(&pair[1])).map(|pair| pair[1]);
        if let (Some(member), Some(level)) = (twice, self.levels.last_mut()) {
            level.last = Some(member.key); // so that path() names it
            return Err(Refusal::DuplicateKey);
        }
        self.scratch.clear();
        for member in &self.order {
            self.scratch.extend_from_slice(&self.out[member.text.0..member.text.1]);
            self.scratch.push(b',');
        }
        self.scratch.pop();
        self.out.truncate(body);
        self.out.extend_from_slice(&self.scratch);
        Ok(())
    }

    /// The members of the innermost object, as they stand in what was written from `from` on.
    fn find_members(&mut self, from: usize) {
        let mut at = from;
        self.order.clear();
        while let Some(quote) = string_end(&self.out, at) {
            let Some(end) = value_end(&self.out, quote + 2) else { break };
            let name = self.read_name(at, quote);
            let rank = key_rank(raw(&self.out, &self.names, Key { rank: 0, name }));
            self.order.push(Member { key: Key { rank, name }, text: (at, end) });
            at = end + 1;
        }
    }

    /// The raw key that stands between two quotes.
    fn read_name(&mut self, open: usize, close: usize) -> Name {
        let text = &self.out[open..=close];
        if !text.contains(&b'\\') {
            return Name::Text(open + 1, close);
        }
        let mut decoded = String::new();
        // What was written here can be read again.
        let _ = parse::read_string(str::from_utf8(text).unwrap_or_default(), &mut 0, &mut decoded);
        self.names.extend_from_slice(decoded.as_bytes());
        Name::Escaped(self.names.len() - decoded.len(), self.names.len())
    }
}

/// A raw key.
fn raw<'a>(out: &'a [u8], names: &'a [u8], key: Key) -> &'a [u8] {
    match key.name {
        Name::Text(from, to) => &out[from..to],
        Name::Escaped(from, to) => &names[from..to],
    }
}

/// The first eight bytes of a key as a number that orders keys as UTF-16 does. Equal numbers say
/// nothing: the keys may be longer, or hold NUL where the shorter one ends.
#[inline]
pub fn key_rank(key: &[u8]) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = match key.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            key.iter().zip([56, 48, 40, 32, 24, 16, 8]).fold(0, |word, (b, at)| word | (u64::from(*b) << at))
        }
    };
    if word & HIGH == 0 { word } else { u64::from_be_bytes(word.to_be_bytes().map(byte_rank)) }
}

/// A UTF-8 byte's place when the first differing bytes of two keys are compared; see [`key_order`].
fn byte_rank(byte: u8) -> u8 {
    match byte {
        0xF0..=0xFF => byte - 2,
        0xEE | 0xEF => byte + 16,
        _ => byte,
    }
}

/// Compares two keys by their UTF-16 code units without making them.
///
/// UTF-8 order is code point order, which differs from UTF-16 order only where a character beyond
/// the basic plane (lead byte F0..F4, surrogates D800.. in UTF-16) meets one in U+E000..U+FFFF
/// (lead byte EE or EF). The first differing byte decides, so those two ranks are swapped.
pub fn key_order(a: &[u8], b: &[u8]) -> Ordering {
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((x, y)) => byte_rank(*x).cmp(&byte_rank(*y)),
        None => a.len().cmp(&b.len()),
    }
}

/// For each byte: 0 if it stands for itself in a string, `u` for `\u00xx`, else its short escape.
static ESCAPE: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0A] = b'n';
    table[0x0C] = b'f';
    table[0x0D] = b'r';
    table[0x22] = b'"';
    table[0x5C] = b'\\';
    table
};

/// Appends a string; says whether nothing in it had to be escaped.
#[inline]
fn write_string(out: &mut Vec<u8>, text: &str) -> bool {
    let bytes = text.as_bytes();
    out.reserve(bytes.len() + 3);
    out.push(b'"');
    let mut from = 0;
    while let Some(offset) = find_escape(&bytes[from..]) {
        let at = from + offset;
        out.extend_from_slice(&bytes[from..at]);
        write_escape(out, bytes[at]);
        from = at + 1;
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
    from == 0
}

fn write_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match ESCAPE[usize::from(byte)] {
        b'u' => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
        short => out.extend_from_slice(&[b'\\', short]),
    }
}

/// The first byte that cannot stand for itself, eight bytes at a time.
#[inline]
fn find_escape(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero_byte = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut at = 0;
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk);
        let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let quote = zero_byte(word ^ (ONES * 0x22));
        let backslash = zero_byte(word ^ (ONES * 0x5C));
        if below_space | quote | backslash != 0 {
            // A borrow can mark a byte after the real one: look again, byte by byte.
            return chunk.iter().position(|b| ESCAPE[usize::from(*b)] != 0).map(|i| at + i);
        }
        at += 8;
    }
    rest.iter().position(|b| ESCAPE[usize::from(*b)] != 0).map(|i| at + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_pushed_in_any_order_come_out_sorted_with_their_values() {
        let mut w = Writer::new();
        w.begin_object().unwrap();
        for (key, value) in [("b", 1), ("", 2), ("aa", 3), ("a", 4)] {
            w.key(key).unwrap();
            w.begin_array().unwrap();
            w.int(value).unwrap();
            w.end().unwrap();
        }
        w.end().unwrap();
        assert_eq!(w.bytes(), br#"{"":[2],"a":[4],"aa":[3],"b":[1]}"#);
    }

    #[test]
    fn keys_sort_by_utf16_units_not_by_code_points() {
        let words = [
            "",
            "a",
            "a\0",
            "ab",
            "abcdefghi",
            "\u{7f}",
            "\u{80}",
            "\u{D7FF}",
            "\u{E000}",
            "\u{FB33}",
            "\u{FFFF}",
            "\u{10000}",
            "\u{1F600}",
            "a\u{1F600}",
            "a\u{E000}",
            "\u{10FFFF}",
            "12345678\u{E000}",
            "12345678\u{10000}",
        ];
        for (a, b) in words.iter().flat_map(|a| words.iter().map(move |b| (a, b))) {
            let real = a.encode_utf16().cmp(b.encode_utf16());
            assert_eq!(key_order(a.as_bytes(), b.as_bytes()), real, "{a:?} {b:?}");
            let ranked = key_rank(a.as_bytes()).cmp(&key_rank(b.as_bytes()));
            assert!(ranked == real || ranked.is_eq(), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_repeated_key_is_refused_with_its_path_sorted_or_not() {
        for keys in [["a", "b", "b"], ["b", "a", "b"]] {
            let mut w = Writer::new();
            w.begin_array().unwrap();
            w.begin_object().unwrap();
            let refused =
                keys.iter().try_for_each(|k| w.key(k).and_then(|()| w.null())).and_then(|()| w.end());
            assert_eq!((refused, w.path()), (Err(Refusal::DuplicateKey), "$[0].b".to_owned()));
        }
    }

    #[test]
    fn every_control_character_and_no_other_is_escaped() {
        for code in 0..=0x2FFu32 {
            let c = char::from_u32(code).unwrap();
            let text = format!("1234567{c}");
            let mut w = Writer::new();
            w.string(&text).unwrap();
            let short = match c {
                '\u{8}' => "\\b".into(),
                '\t' => "\\t".into(),
                '\n' => "\\n".into(),
                '\u{c}' => "\\f".into(),
                '\r' => "\\r".into(),
                '"' => "\\\"".into(),
                '\\' => "\\\\".into(),
                c if code < 0x20 => format!("\\u{:04x}", u32::from(c)),
                c => c.to_string(),
            };
            assert_eq!(String::from_utf8(w.into_bytes()).unwrap(), format!("\"1234567{short}\""));
        }
    }
}
