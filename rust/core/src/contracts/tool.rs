//! What a tool declares, and how an error is told to programs.

use serde_json::{Map, Value};

use crate::records::macros::{facts, tokens};
use crate::records::{EffectClass, Name, Risk, Text, Token};

tokens! {
    pub enum ToolApproval {
        Never = "never",
        Policy = "policy",
        Always = "always",
    }
    pub enum SandboxNeed {
        None = "none",
        Preferred = "preferred",
        Required = "required",
    }
}

facts! {
    /// A tool as it is registered.
    pub struct ToolSpec {
        pub approval: ToolApproval,
        pub compensates: bool,
        pub description: Option<Text>,
        pub effect: EffectClass,
        /// JSON Schema of the arguments.
        pub input: Map<String, Value>,
        /// How long the idempotency key protects at the provider.
        pub key_ttl_ms: Option<u64>,
        pub max_attempts: u32,
        pub name: Name,
        /// JSON Schema of the result.
        pub output: Option<Map<String, Value>>,
        pub reconciles: bool,
        pub risk: Risk,
        pub sandbox: SandboxNeed,
        /// Parameters that are never stored.
        pub secrets: Vec<Name>,
        pub timeout_ms: u64,
        pub version: Name,
    }

    /// An error, as the command line and other processes see it.
    pub struct ErrorInfo {
        pub code: Token,
        pub fix: Text,
        pub message: Text,
        pub path: Option<Text>,
    }
}
