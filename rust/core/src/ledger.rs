//! Effects: permits, and the ways out of a doubt. A permit has a key that is the same in every dispatch of
//! a call, a time by which the body must have begun, and a time within which it must have ended.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::{CanonicalError, Digest, domains, hex};
use crate::clock::Now;
use crate::contracts::tool::ToolSpec;
use crate::ids::CallId;
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{Key, SchemaDigest};
use crate::state::Call;

/// Leave to run an effect, once.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// What the body gets.
    pub arguments: Value,
    pub boot_id: Key,
    pub call: CallId,
    pub dispatch: u32,
    pub key: Key,
    /// Later than this on the boot clock, the body does not start.
    pub start_by: u64,
    pub timeout_ms: u64,
}

/// A call's idempotency key: `hf_` and 40 hex digits that follow from its id alone.
pub fn key_of(call: CallId) -> Key {
    let digest = Digest::<domains::Permit>::of_bytes(&[call.to_string().as_bytes()]);
    let text = hex(digest.bytes());
    Key::new(format!("hf_{}", &text[..40])).unwrap_or_else(Key::none)
}

/// A tool as it was registered, with the digest of its schemas.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub schema: SchemaDigest,
    pub spec: ToolSpec,
}

impl Tool {
    pub fn new(spec: ToolSpec) -> Result<Self, CanonicalError> {
        Ok(Self { schema: Digest::of(&(&spec.input, &spec.output))?, spec })
    }
}

impl std::ops::Deref for Tool {
    type Target = ToolSpec;
    fn deref(&self) -> &ToolSpec {
        &self.spec
    }
}

impl Serialize for Tool {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.spec.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(ToolSpec::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// What can be done about a write whose outcome nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayOut {
    /// The other side still honours the key: send it off again.
    Again,
    /// Ask the tool whether it happened.
    Reconcile,
    /// The tool can be asked once the old permit can no longer act: at this time, on the wall.
    ReconcileAt(u64),
    /// Only a person knows.
    Person,
}

/// The ways out of a doubt, in their order.
pub fn way_out(call: &Call, tool: &Tool, tries_left: bool, now: &Now) -> WayOut {
    if tries_left && key_protects(call, tool, now) {
        return WayOut::Again;
    }
    if !tool.reconciles {
        return WayOut::Person;
    }
    match may_act_for(call, now) {
        0 => WayOut::Reconcile,
        left => WayOut::ReconcileAt(now.wall_ms.saturating_add(left)),
    }
}

/// Whether the key of a call still keeps the other side from doing it twice: the tool is what it was, and
/// less time has passed since the first start than the tool says, by both clocks and with a margin.
fn key_protects(call: &Call, tool: &Tool, now: &Now) -> bool {
    let (Some(ttl), Some(first)) = (call.permit_key_ttl_ms, &call.first_permit) else { return false };
    if tool.key_ttl_ms.is_none() {
        return false; // the tool no longer says that its key protects
    }
    let unchanged = first.version.as_ref() == Some(&tool.version) && first.schema == Some(tool.schema);
    if !unchanged && !mutant(Mutant::AnyVersionRepeats) {
        return false;
    }
    if mutant(Mutant::KeyNeverExpires) {
        return true;
    }
    let Some(by_wall) = now.wall_ms.checked_sub(first.at) else { return false }; // the clock went back
    let begun = first.start_by.saturating_sub(limits::START_WINDOW_MS);
    let same_boot = first.boot_id.as_str() == now.boot_id;
    let by_boot = if same_boot { now.boot_ms.saturating_sub(begun) } else { 0 };
    let margin = ttl / 10;
    by_wall.max(by_boot) < ttl - margin
}

/// For how many milliseconds a permit of a call might still act; none if none of them provably can.
pub fn may_act_for(call: &Call, now: &Now) -> u64 {
    if mutant(Mutant::ReconcileAtOnce) {
        return 0;
    }
    let older = call.older_permit.as_ref().filter(|_| !mutant(Mutant::NewestPermitOnly));
    let acts = call.permit.iter().chain(older).filter(|permit| !permit.over);
    let acts = acts.filter(|permit| permit.boot_id.as_str() == now.boot_id);
    acts.map(|permit| permit.end().saturating_sub(now.boot_ms)).max().unwrap_or(0)
}

/// When the body of a permit must have begun.
pub fn start_by(now: &Now) -> u64 {
    now.boot_ms.saturating_add(limits::START_WINDOW_MS)
}
