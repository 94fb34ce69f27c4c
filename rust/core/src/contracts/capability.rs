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
