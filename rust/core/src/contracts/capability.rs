//! What a capability or a grant allows: rights and argument constraints.

use serde_json::Value;

use crate::records::macros::{facts, tokens};
use crate::records::{Key, Name};

tokens! {
    pub enum Right {
        Call = "call",
        Open = "open",
        Read = "read",
        Write = "write",
        Send = "send",
        Monitor = "monitor",
        Kill = "kill",
        Spawn = "spawn",
        Grant = "grant",
    }
    /// How a constraint compares the argument with its value.
    pub enum Comparison {
        Equals = "equals",
        OneOf = "one_of",
        Max = "max",
        Min = "min",
        Glob = "glob",
    }
}

facts! {
    /// One restriction on an argument; an unknown one denies.
    pub struct Constraint {
        /// Dotted path into the arguments: `order.cents`.
        pub argument: Key,
        pub comparison: Comparison,
        /// A JSON scalar, or a list of them for `one_of`.
        pub value: Value,
    }

    /// Leave to use a tool, as it is listed and shown.
    pub struct Grant {
        pub constraints: Vec<Constraint>,
        pub expires_at: u64,
        pub grant: crate::ids::GrantId,
        pub revoked: bool,
        pub session: Option<crate::ids::SessionId>,
        pub tool: Name,
        pub uses_left: u32,
    }
}

impl Constraint {
    /// Whether arguments satisfy it; none if that cannot be told.
    pub fn holds(&self, arguments: &Value) -> Option<bool> {
        let mut found = arguments;
        for part in self.argument.as_str().split('.') {
            found = found.get(part)?;
        }
        match (self.comparison, &self.value) {
            (Comparison::Equals, expected) => Some(same(found, expected)),
            (Comparison::OneOf, Value::Array(several)) => Some(several.iter().any(|one| same(found, one))),
            (Comparison::Max, limit) => Some(found.as_f64()? <= limit.as_f64()?),
            (Comparison::Min, limit) => Some(found.as_f64()? >= limit.as_f64()?),
            (Comparison::Glob, Value::String(pattern)) => Some(glob_text(pattern, found.as_str()?)),
            (Comparison::OneOf | Comparison::Glob, _) => None,
        }
    }
}

/// Equal as JSON: 1 and 1.0 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.total_cmp(&other).is_eq(),
        _ => one == other,
    }
}

/// Whether a text fits a pattern of `*` and `?`.
pub(crate) fn glob_text(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(one) if *one == '?' || *one == text[read] => (at, read) = (at + 1, read + 1),
            _ => match star {
                Some((stood, from)) => {
                    (at, read) = (stood + 1, from + 1);
                    star = Some((stood, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}
