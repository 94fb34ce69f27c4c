//! What many records share: names, actors, fences, failures, amounts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::macros::{facts, strings, tokens};
use crate::canonical::{Digest, domains};
use crate::content::Content;
use crate::limits;

fn printable(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c < ' ' || c == '\u{7f}')
}

fn dotted(text: &str) -> bool {
    text.split('.').all(|part| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    })
}

fn media(text: &str) -> bool {
    let part =
        |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b));
    text.split_once('/').is_some_and(|(kind, sub)| part(kind) && part(sub))
}

strings! {
    /// A name that people see: agent, tool, queue, worker, lane, signal.
    pub struct Name(limits::NAME_CHARS_MAX, printable, "^[^\\u0000-\\u001f\\u007f]+$");
    /// A key that callers give: idempotency, concurrency.
    pub struct Key(limits::KEY_CHARS_MAX, printable, "^[^\\u0000-\\u001f\\u007f]+$");
    /// A code for programs: `approval.timeout`.
    pub struct Token(limits::NAME_CHARS_MAX, dotted, "^[a-z0-9_]+(\\.[a-z0-9_]+)*$");
    /// A media type without parameters.
    pub struct Media(limits::NAME_CHARS_MAX, media, "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$");
    /// Short free text that holds no user's value: a summary that was made to be shown.
    pub struct Text(limits::TEXT_CHARS_MAX, |_| true, "^[\\s\\S]*$");
}

impl Name {
    /// Stands where a newer Holdfast says it in a way that this one does not know.
    pub(crate) fn unknown() -> Self {
        Self("unknown".to_owned())
    }
}

impl Key {
    /// Stands where a key was wanted that cannot be spelled.
    pub(crate) fn none() -> Self {
        Self("none".to_owned())
    }
}

impl Token {
    /// Stands where a code was wanted that is none.
    pub(crate) fn unknown() -> Self {
        Self("unknown".to_owned())
    }
}

impl Text {
    pub fn empty() -> Self {
        Self(String::new())
    }
}

impl Media {
    /// Canonical JSON.
    pub fn json() -> Self {
        Self("application/json".to_owned())
    }
}

pub type PackageDigest = Digest<domains::Package>;
pub type PolicyDigest = Digest<domains::Policy>;
pub type SchemaDigest = Digest<domains::Schema>;
pub type ApprovalDigest = Digest<domains::Approval>;
pub type RecordHash = Digest<domains::Record>;
pub type Labels = BTreeMap<String, String>;

tokens! {
    /// Who may see a content or a record.
    pub enum Privacy {
        Public = "public",
        Internal = "internal",
        ContentRefsOnly = "content_refs_only",
        Sensitive = "sensitive",
        Secret = "secret",
    }
    pub enum ActorType {
        Worker = "worker",
        Human = "human",
        Agent = "agent",
        Hook = "hook",
        System = "system",
    }
    /// What a call does to the world.
    pub enum EffectClass {
        Pure = "pure",
        Read = "read",
        Write = "write",
        Internal = "internal",
    }
    pub enum Risk {
        Low = "low",
        Medium = "medium",
        High = "high",
        Critical = "critical",
    }
    /// Where a failure came from.
    pub enum FailureSource {
        Agent = "agent",
        Tool = "tool",
        Model = "model",
        Hook = "hook",
        Policy = "policy",
        Approval = "approval",
        Budget = "budget",
        Sandbox = "sandbox",
        State = "state",
        Runtime = "runtime",
        Store = "store",
    }
    /// What can be accounted.
    pub enum Account {
        Tokens = "tokens",
        UsdMicros = "usd_micros",
        ToolCalls = "tool_calls",
        Children = "children",
        /// Limits at any time: nothing of them is spent, so nobody is asked for more.
        Concurrency = "concurrency",
        WallMs = "wall_ms",
    }
    pub enum OnExceeded {
        Refuse = "refuse",
        Ask = "ask",
    }
}

facts! {
    /// Who did it. The id is opaque: names live in an erasable directory.
    pub struct Actor {
        pub id: Name,
        pub r#type: ActorType,
    }

    /// How something failed. The message is a content: exceptions quote users' values.
    pub struct Failure {
        pub code: Option<Token>,
        pub error: Name,
        pub message: Option<Content>,
        pub retryable: bool,
        pub source: FailureSource,
    }

    /// Amounts of an account; money in millionths of a US dollar.
    #[derive(Default)]
    pub struct Amounts {
        pub children: Option<u64>,
        pub tokens: Option<u64>,
        pub tool_calls: Option<u64>,
        pub usd_micros: Option<u64>,
    }

    /// What a run may use. Accounts are spent; `wall_ms`, `memory_bytes`, `mailbox` and `concurrency`
    /// are limits at any time.
    pub struct Budget {
        pub children: Option<u64>,
        pub concurrency: Option<u64>,
        pub mailbox: Option<u64>,
        pub memory_bytes: Option<u64>,
        pub on_exceeded: OnExceeded,
        pub tokens: Option<u64>,
        pub tool_calls: Option<u64>,
        pub usd_micros: Option<u64>,
        pub wall_ms: Option<u64>,
    }

    /// Everything that changes behaviour, part by part.
    pub struct Package {
        pub agent: Name,
        pub hooks: PackageDigest,
        pub instructions: PackageDigest,
        pub models: PackageDigest,
        pub policy: PackageDigest,
        pub python: Name,
        pub tools: PackageDigest,
    }

    /// When a step is tried again.
    pub struct RetryPolicy {
        pub backoff_max_ms: u64,
        pub backoff_ms: u64,
        pub max_attempts: u32,
    }
}

tokens! {
    /// The parts of a [`Package`].
    pub enum PackagePart {
        Agent = "agent",
        Hooks = "hooks",
        Instructions = "instructions",
        Models = "models",
        Policy = "policy",
        Python = "python",
        Tools = "tools",
    }
}

impl Actor {
    /// Holdfast itself.
    pub fn system() -> Self {
        Self { id: Name("holdfast".to_owned()), r#type: ActorType::System }
    }
}

impl Package {
    /// The parts that differ.
    pub fn changed(&self, other: &Self) -> Vec<PackagePart> {
        let parts = [
            (PackagePart::Agent, self.agent != other.agent),
            (PackagePart::Hooks, self.hooks != other.hooks),
            (PackagePart::Instructions, self.instructions != other.instructions),
            (PackagePart::Models, self.models != other.models),
            (PackagePart::Policy, self.policy != other.policy),
            (PackagePart::Python, self.python != other.python),
            (PackagePart::Tools, self.tools != other.tools),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }
}

impl RetryPolicy {
    /// The pause before an attempt: doubled each time, jittered into its upper half, capped.
    /// `jitter` is a random number given by the caller.
    pub fn backoff_ms(&self, failed_attempts: u32, jitter: u32) -> u64 {
        let doubled = self
            .backoff_ms
            .saturating_mul(1u64.checked_shl(failed_attempts.saturating_sub(1)).unwrap_or(u64::MAX));
        let full = doubled.min(self.backoff_max_ms);
        let part = u128::from(full / 2) * u128::from(jitter) / u128::from(u32::MAX);
        full - full / 2 + u64::try_from(part).unwrap_or(0)
    }
}

/// The right to work on a step, as a number that only grows: (epoch of the store, n-th claim).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Fence(pub u32, pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap_and_never_leaves_its_upper_half() {
        let policy = RetryPolicy { backoff_ms: 100, backoff_max_ms: 1000, max_attempts: 9 };
        assert_eq!(
            [1, 2, 3, 4, 5, 99].map(|n| policy.backoff_ms(n, u32::MAX)),
            [100, 200, 400, 800, 1000, 1000]
        );
        assert_eq!([1, 2, 3, 4, 5, 99].map(|n| policy.backoff_ms(n, 0)), [50, 100, 200, 400, 500, 500]);
    }
}
