//! The envelope of a record, written and read straight: every record of every journal passes here, and
//! all but its body has one known form. Whatever is not as it should be is left to the long way, which
//! names what is wrong; so both sides must agree with it, and a test compares them.

use std::str::FromStr;

use super::common::{Actor, ActorType, Fence, Name, Privacy, RecordHash};
use super::kinds::Body;
use super::record::{Record, VERSION};
use crate::canonical::scan::{string_end, value_end};
use crate::canonical::{CanonicalError, Digest, Refusal, Writer};
use crate::limits;

/// Pushes a record of this version into a writer. What it refuses is named by the long way only.
pub(super) fn write(record: &Record, out: &mut Writer) -> Result<(), CanonicalError> {
    let refused = |refusal| CanonicalError { refusal, path: String::new() };
    out.begin_object().map_err(refused)?;
    out.literal_key("\"at\":");
    number(out, record.at).map_err(refused)?;
    if let Some(attempt) = record.attempt {
        out.literal_key("\"attempt\":");
        number(out, attempt.into()).map_err(refused)?;
    }
    out.literal_key("\"body\":");
    record.body.write(out)?;
    write_rest(record, out).map_err(refused)
}

fn write_rest(record: &Record, out: &mut Writer) -> Result<(), Refusal> {
    out.literal_key("\"by\":");
    out.begin_object()?;
    out.literal_key("\"id\":");
    out.string(record.by.id.as_str())?;
    out.literal_key("\"type\":");
    out.plain_string(record.by.r#type.as_str())?;
    out.end()?;
    if let Some(call) = record.call {
        out.literal_key("\"call\":");
        call.with_text(|text| out.plain_string(text))?;
    }
    if let Some(cause) = record.cause {
        out.literal_key("\"cause\":");
        number(out, cause)?;
    }
    if let Some(dispatch) = record.dispatch {
        out.literal_key("\"dispatch\":");
        number(out, dispatch.into())?;
    }
    if let Some(Fence(epoch, n)) = record.fence {
        out.literal_key("\"fence\":");
        out.begin_array()?;
        number(out, epoch.into())?;
        number(out, n.into())?;
        out.end()?;
    }
    out.literal_key("\"kind\":");
    out.string(record.kind())?;
    if let Some(lane) = &record.lane {
        out.literal_key("\"lane\":");
        out.string(lane.as_str())?;
    }
    out.literal_key("\"prev\":");
    record.prev.with_text(|text| out.plain_string(text))?;
    out.literal_key("\"privacy\":");
    out.plain_string(record.privacy.as_str())?;
    out.literal_key("\"seq\":");
    number(out, record.seq)?;
    if let Some(step) = record.step {
        out.literal_key("\"step\":");
        step.with_text(|text| out.plain_string(text))?;
    }
    out.literal_key("\"stream\":");
    record.stream.with_text(|text| out.plain_string(text))?;
    if let Some(turn) = record.turn {
        out.literal_key("\"turn\":");
        number(out, turn.into())?;
    }
    out.literal_key("\"v\":");
    number(out, record.v.into())?;
    out.end()
}

fn number(out: &mut Writer, value: u64) -> Result<(), Refusal> {
    out.int(i64::try_from(value).map_err(|_| Refusal::IntegerTooLarge)?)
}

/// Reads a record of this version from its canonical text. The envelope is compared with the one way to
/// spell it as it is read; the body is encoded again and compared. Nothing if it is anything else.
pub(super) fn read(text: &[u8], writer: &mut Writer) -> Option<Record> {
    let mut scan = Scan { text: str::from_utf8(text).ok()?, at: 0 };
    scan.literal("{\"at\":")?;
    let at = scan.number()?;
    let attempt = scan.after(",\"attempt\":", Scan::small).ok()?;
    scan.literal(",\"body\":")?;
    let body = scan.value()?;
    scan.literal(",\"by\":{\"id\":")?;
    let id = scan.name()?;
    scan.literal(",\"type\":")?;
    let by = Actor { id, r#type: ActorType::parse(scan.string()?)? };
    scan.literal("}")?;
    let call = scan.after(",\"call\":", Scan::id).ok()?;
    let cause = scan.after(",\"cause\":", Scan::number).ok()?;
    let dispatch = scan.after(",\"dispatch\":", Scan::small).ok()?;
    let fence = scan.after(",\"fence\":", Scan::fence).ok()?;
    scan.literal(",\"kind\":")?;
    let kind = scan.string()?;
    let lane = scan.after(",\"lane\":", Scan::name).ok()?;
    scan.literal(",\"prev\":")?;
    let prev: RecordHash = Digest::parse(scan.string()?)?;
    scan.literal(",\"privacy\":")?;
    let privacy = Privacy::parse(scan.string()?)?;
    scan.literal(",\"seq\":")?;
    let seq = scan.number()?;
    let step = scan.after(",\"step\":", Scan::id).ok()?;
    scan.literal(",\"stream\":")?;
    let stream = scan.id()?;
    let turn = scan.after(",\"turn\":", Scan::small).ok()?;
    const { assert!(VERSION == 1) };
    scan.literal(",\"v\":1}")?;
    if seq == 0 || scan.at != text.len() {
        return None;
    }
    let (v, body) = (VERSION, read_body(kind, body, writer)?);
    let fits = body.fits(stream);
    fits.then_some(Record {
        at,
        attempt,
        body,
        by,
        call,
        cause,
        dispatch,
        fence,
        lane,
        prev,
        privacy,
        seq,
        step,
        stream,
        turn,
        v,
    })
}

/// Reads the body of a known kind; bytes that come out the same again are canonical and say the same.
fn read_body(kind: &str, text: &str, writer: &mut Writer) -> Option<Body> {
    const INSIDE: &str = "\"body\":";
    let body = Body::read_plain(kind, text)?;
    // Inside an object, as it stands in the record: its depth counts from there.
    writer.reset(None);
    writer.begin_object().ok()?;
    writer.literal_key(INSIDE);
    body.write(writer).ok()?;
    (writer.bytes()[1 + INSIDE.len()..] == *text.as_bytes()).then_some(body)
}

/// It is something else than the one form.
struct NotPlain;

/// A text that is walked from left to right.
struct Scan<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Scan<'t> {
    fn optional(&mut self, expected: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(expected.as_bytes());
        if found {
            self.at += expected.len();
        }
        found
    }

    fn literal(&mut self, expected: &str) -> Option<()> {
        self.optional(expected).then_some(())
    }

    /// An integer as the writer spells it.
    fn number(&mut self) -> Option<u64> {
        let digits = &self.text.as_bytes()[self.at..];
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if length == 0 || length > 16 || (length > 1 && digits[0] == b'0') {
            return None;
        }
        let value = digits[..length].iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
        self.at += length;
        i64::try_from(value).is_ok_and(|value| value <= limits::INTEGER_MAX).then_some(value)
    }

    /// What stands behind a key, if the key does.
    fn after<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Result<Option<T>, NotPlain> {
        if self.optional(key) { read(self).map(Some).ok_or(NotPlain) } else { Ok(None) }
    }

    /// A number of 32 bits.
    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A string in which nothing is escaped, or would have to be.
    fn string(&mut self) -> Option<&'t str> {
        let end = string_end(self.text.as_bytes(), self.at)?;
        let inner = self.text.get(self.at + 1..end)?;
        self.at = end + 1;
        inner.bytes().all(|byte| byte >= b' ' && byte != b'\\').then_some(inner)
    }

    fn id<T: FromStr>(&mut self) -> Option<T> {
        self.string()?.parse().ok()
    }

    fn name(&mut self) -> Option<Name> {
        Name::new(self.string()?)
    }

    fn fence(&mut self) -> Option<Fence> {
        self.literal("[")?;
        let epoch = self.small()?;
        self.literal(",")?;
        let n = self.small()?;
        self.literal("]")?;
        Some(Fence(epoch, n))
    }

    /// The text of any value.
    fn value(&mut self) -> Option<&'t str> {
        let end = value_end(self.text.as_bytes(), self.at)?;
        let value = self.text.get(self.at..end)?;
        self.at = end;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::to_bytes;
    use crate::content::{Salt, seal};
    use crate::ids::{CallId, RunId, StepId, StreamId};
    use crate::records::{Draft, LogLevel, NoteLogged, Privacy};

    fn record(every: bool) -> Record {
        let text = seal("hello".into(), Salt([7; 16]), Privacy::Internal).unwrap().content;
        let body = NoteLogged { level: LogLevel::Info, text };
        let draft =
            Draft::new(body, Actor { id: Name::new("caf\u{e9} 7").unwrap(), r#type: ActorType::Human });
        let stream = StreamId::Run(RunId::new(1_763_251_200_123, [7; 10]));
        let mut record = Record::place(draft, stream, 17, 1_763_251_200_123, Digest::of_bytes(&[b"x"]));
        if every {
            record.attempt = Some(0);
            record.call = Some(CallId::new(1, [1; 10]));
            record.cause = Some(limits::INTEGER_MAX.try_into().unwrap());
            record.dispatch = Some(u32::MAX);
            record.fence = Some(Fence(0, 10));
            record.lane = Name::new("a lane");
            record.privacy = Privacy::Secret;
            record.step = Some(StepId::new(2, [2; 10]));
            record.turn = Some(3);
        }
        record
    }

    #[test]
    fn both_ways_write_the_same_text_and_it_is_read_back() {
        for record in [record(false), record(true)] {
            let mut writer = Writer::new();
            let text = record.write(&mut writer).unwrap().to_vec();
            assert_eq!(text, to_bytes(&record).unwrap());
            assert_eq!(read(&text, &mut Writer::new()), Some(record));
        }
    }

    #[test]
    fn what_is_escaped_is_written_the_same_and_left_to_the_long_way() {
        let mut record = record(true);
        record.by.id = Name::new("a \"quoted\" \\ name").unwrap();
        let text = record.write(&mut Writer::new()).unwrap().to_vec();
        assert_eq!(text, to_bytes(&record).unwrap());
        assert_eq!(read(&text, &mut Writer::new()), None);
        assert_eq!(Record::parse(&text), Ok(record));
    }

    #[test]
    fn no_change_of_a_byte_is_read_as_the_same_record_or_as_anything_that_is_spelled_otherwise() {
        for record in [record(false), record(true)] {
            let text = to_bytes(&record).unwrap();
            for at in 0..text.len() {
                for change in [b' ', b'"', b'\\', b'0', b'}', text[at] ^ 1, text[at] ^ 0x80] {
                    let mut other = text.clone();
                    other[at] = change;
                    let Some(found) = read(&other, &mut Writer::new()) else { continue };
                    assert_eq!(to_bytes(&found).unwrap(), other, "byte {at}");
                    assert_eq!(found == record, other == text, "byte {at}");
                }
                let mut shorter = text.clone();
                shorter.remove(at);
                if let Some(found) = read(&shorter, &mut Writer::new()) {
                    assert_eq!(to_bytes(&found).unwrap(), shorter, "without byte {at}");
                }
            }
            assert_eq!(read(&[&text[..], b" "].concat(), &mut Writer::new()), None);
        }
    }

    #[test]
    fn a_body_is_as_deep_as_it_stands_in_its_record() {
        let body = read_body("x.acme.moved", r#"{"data":{"a":"deep"}}"#, &mut Writer::new()).unwrap();
        let text = Record { body, ..record(true) }.bytes().unwrap();
        // The record, its body, the data and so many arrays.
        let nested = |arrays: usize| {
            let deep = "[".repeat(arrays) + &"]".repeat(arrays);
            String::from_utf8(text.clone()).unwrap().replace("\"deep\"", &deep)
        };
        let (fits, too_deep) = (nested(limits::DEPTH_MAX - 3), nested(limits::DEPTH_MAX - 2));
        assert!(read(fits.as_bytes(), &mut Writer::new()).is_some());
        assert_eq!(read(too_deep.as_bytes(), &mut Writer::new()), None);
        assert!(Record::parse(too_deep.as_bytes()).is_err());
    }
}
