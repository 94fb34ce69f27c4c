//! The envelope of a record, its canonical bytes and its hash.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::common::{Actor, ActorType, Fence, Name, Privacy, RecordHash, Token};
use super::contents::contents_of;
use super::envelope;
use super::kinds::Body;
use super::read::{Fault, ReadError, read};
use crate::canonical::{self, CanonicalError, Digest, Writer, domains, write_serde};
use crate::content::{Content, Sealed};
use crate::ids::{CallId, StepId, StoreId, StreamId};
use crate::limits;

/// The record schema that this build writes.
pub const VERSION: u32 = 1;

/// One fact in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Milliseconds since the epoch, never less than the record before. For people only.
    pub at: u64,
    pub attempt: Option<u32>,
    pub body: Body,
    pub by: Actor,
    pub call: Option<CallId>,
    /// The seq of the record that led to it.
    pub cause: Option<u64>,
    pub dispatch: Option<u32>,
    pub fence: Option<Fence>,
    pub lane: Option<Name>,
    /// The hash of the record before; of the first, [`genesis`].
    pub prev: RecordHash,
    pub privacy: Privacy,
    pub seq: u64,
    pub step: Option<StepId>,
    pub stream: StreamId,
    pub turn: Option<u32>,
    pub v: u32,
}

/// A record before the store has given it its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub attempt: Option<u32>,
    /// Contents of its body that are kept as blobs already.
    pub blobs: Vec<Content>,
    pub body: Body,
    pub by: Actor,
    pub call: Option<CallId>,
    pub cause: Option<u64>,
    pub dispatch: Option<u32>,
    pub fence: Option<Fence>,
    pub lane: Option<Name>,
    pub privacy: Privacy,
    pub step: Option<StepId>,
    /// What opens the contents of its body.
    pub sealed: Vec<Sealed>,
    pub turn: Option<u32>,
}

impl Draft {
    /// A draft of a fact by somebody; the rest is set as fields.
    pub fn new(body: impl Into<Body>, by: Actor) -> Self {
        Self {
            attempt: None,
            blobs: Vec::new(),
            body: body.into(),
            by,
            call: None,
            cause: None,
            dispatch: None,
            fence: None,
            lane: None,
            privacy: Privacy::Internal,
            step: None,
            sealed: Vec::new(),
            turn: None,
        }
    }
}

/// The `prev` of a stream's first record: it ties the stream to its store.
pub fn genesis(store: StoreId, stream: StreamId) -> RecordHash {
    let (store, stream) = (store.to_string(), stream.to_string());
    Digest::<domains::Stream>::of_bytes(&[store.as_bytes(), b"\n", stream.as_bytes()]).into_prev()
}

/// The envelope as it is read from a tree; the body is read by its kind afterwards.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    at: u64,
    attempt: Option<u32>,
    body: Value,
    by: Actor,
    call: Option<CallId>,
    cause: Option<u64>,
    dispatch: Option<u32>,
    fence: Option<Fence>,
    kind: String,
    lane: Option<Name>,
    prev: RecordHash,
    privacy: Privacy,
    seq: u64,
    step: Option<StepId>,
    stream: StreamId,
    turn: Option<u32>,
    v: u32,
}

impl Shape {
    fn with(self, body: Body) -> Record {
        Record {
            at: self.at,
            attempt: self.attempt,
            body,
            by: self.by,
            call: self.call,
            cause: self.cause,
            dispatch: self.dispatch,
            fence: self.fence,
            lane: self.lane,
            prev: self.prev,
            privacy: self.privacy,
            seq: self.seq,
            step: self.step,
            stream: self.stream,
            turn: self.turn,
            v: self.v,
        }
    }
}

impl Record {
    /// Reads a record from its text, which must be canonical. A kind or version of a newer Holdfast is
    /// kept as [`Body::Unknown`].
    pub fn parse(text: &[u8]) -> Result<Self, ReadError> {
        Self::parse_with(text, &mut Writer::new())
    }

    /// The same with a writer that is used again for the next record.
    pub fn parse_with(text: &[u8], writer: &mut Writer) -> Result<Self, ReadError> {
        if text.len() > limits::RECORD_BYTES_MAX {
            return Err(ReadError::new(Fault::RecordTooLarge, "$", "a record larger than record_bytes_max"));
        }
        if let Some(record) = envelope::read(text, writer) {
            return Ok(record);
        }
        let record = Self::read(&canonical::from_text(text)?)?;
        if record.bytes()? != text {
            return Err(ReadError::new(Fault::NotCanonical, "$", "the text is not canonical"));
        }
        Ok(record)
    }

    /// Reads a record from a tree.
    pub fn read(value: &Value) -> Result<Self, ReadError> {
        if value.get("v").and_then(Value::as_u64).is_some_and(|v| v > u64::from(VERSION)) {
            return Self::read_newer(value);
        }
        let shape: Shape = read(value)?;
        if Token::new(shape.kind.as_str()).is_none() {
            return Err(ReadError::new(Fault::UnknownKind, "$.kind", "not the token of a kind"));
        }
        let body = Body::read(&shape.kind, &shape.body).map_err(|error| error.within("body"))?;
        if !body.fits(shape.stream) {
            let message = format!("a stream of this kind holds no {}", body.kind());
            return Err(ReadError::new(Fault::BadValue, "$.stream", message));
        }
        if shape.seq == 0 || shape.v == 0 {
            return Err(ReadError::new(
                Fault::BadValue,
                if shape.v == 0 { "$.v" } else { "$.seq" },
                "counts from 1",
            ));
        }
        Ok(shape.with(body))
    }

    /// Reads what the chain needs of a record of a newer version; the rest is kept as it is.
    fn read_newer(value: &Value) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        struct Core {
            at: u64,
            kind: String,
            prev: RecordHash,
            seq: u64,
            stream: StreamId,
            v: u32,
        }
        let core: Core = read(value)?;
        if core.seq == 0 {
            return Err(ReadError::new(Fault::BadValue, "$.seq", "counts from 1"));
        }
        let nobody = Actor { id: Name::unknown(), r#type: ActorType::System };
        let draft = Draft::new(Body::Unknown(core.kind, Box::new(value.clone())), nobody);
        let mut record = Self::place(draft, core.stream, core.seq, core.at, core.prev);
        record.v = core.v;
        Ok(record)
    }

    /// A draft in its place.
    pub fn place(draft: Draft, stream: StreamId, seq: u64, at: u64, prev: RecordHash) -> Self {
        Self {
            at,
            attempt: draft.attempt,
            body: draft.body,
            by: draft.by,
            call: draft.call,
            cause: draft.cause,
            dispatch: draft.dispatch,
            fence: draft.fence,
            lane: draft.lane,
            prev,
            privacy: draft.privacy,
            seq,
            step: draft.step,
            stream,
            turn: draft.turn,
            v: VERSION,
        }
    }

    pub fn kind(&self) -> &str {
        self.body.kind()
    }

    /// Its canonical text as a document of a writer.
    pub(crate) fn write<'w>(&self, writer: &'w mut Writer) -> Result<&'w [u8], CanonicalError> {
        writer.reset(None);
        if envelope::write(self, writer).is_err() {
            writer.reset(None);
            write_serde(writer, self)?; // which names what is refused
        }
        Ok(writer.bytes())
    }

    /// Whether it was written by a newer Holdfast in a way that this one must not act upon.
    pub fn is_newer(&self) -> bool {
        use super::kinds::Class;
        matches!(&self.body, Body::Unknown(..)) && (self.v > VERSION || self.body.class() == Class::Critical)
    }

    /// The contents that its body holds.
    pub fn contents(&self) -> Vec<Content> {
        match &self.body {
            Body::Unknown(..) => Vec::new(),
            known => contents_of(known),
        }
    }

    pub fn bytes(&self) -> Result<Vec<u8>, CanonicalError> {
        match &self.body {
            Body::Unknown(_, whole) if self.v > VERSION => canonical::to_bytes(&**whole),
            _ => canonical::to_bytes(self),
        }
    }

    pub fn hash(&self) -> Result<RecordHash, CanonicalError> {
        Ok(hash_text(&self.bytes()?))
    }
}

/// The hash of a record's canonical text.
pub(crate) fn hash_text(text: &[u8]) -> RecordHash {
    Digest::of_bytes(&[text])
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn put<S: SerializeStruct, T: Serialize>(
            out: &mut S,
            key: &'static str,
            value: Option<&T>,
        ) -> Result<(), S::Error> {
            match value {
                Some(value) => out.serialize_field(key, value),
                None => out.skip_field(key),
            }
        }
        // In alphabetical order, so that the canonical writer moves nothing.
        let mut out = serializer.serialize_struct("Record", 17)?;
        out.serialize_field("at", &self.at)?;
        put(&mut out, "attempt", self.attempt.as_ref())?;
        self.body.serialize_into(&mut out)?;
        out.serialize_field("by", &self.by)?;
        put(&mut out, "call", self.call.as_ref())?;
        put(&mut out, "cause", self.cause.as_ref())?;
        put(&mut out, "dispatch", self.dispatch.as_ref())?;
        put(&mut out, "fence", self.fence.as_ref())?;
        out.serialize_field("kind", self.kind())?;
        put(&mut out, "lane", self.lane.as_ref())?;
        out.serialize_field("prev", &self.prev)?;
        out.serialize_field("privacy", &self.privacy)?;
        out.serialize_field("seq", &self.seq)?;
        put(&mut out, "step", self.step.as_ref())?;
        out.serialize_field("stream", &self.stream)?;
        put(&mut out, "turn", self.turn.as_ref())?;
        out.serialize_field("v", &self.v)?;
        out.end()
    }
}
