//! Policy as data: rules, what they decide, what they oblige to.

use std::collections::BTreeMap;

use super::capability::Constraint;
use crate::records::macros::{facts, tokens};
use crate::records::{EffectClass, Name, Risk, SandboxTier};

tokens! {
    /// What policy says about a call. `deny` wins over `ask` wins over `allow`.
    pub enum Decision {
        Allow = "allow",
        Ask = "ask",
        Deny = "deny",
    }
    pub enum ObligationKind {
        Sandbox = "sandbox",
        Redact = "redact",
        Approvers = "approvers",
    }
}

facts! {
    /// What must hold when the call runs; one that cannot be enforced is a refusal.
    pub struct Obligation {
        pub fields: Vec<Name>,
        pub kind: ObligationKind,
        pub quorum: Option<u32>,
        pub roles: Vec<Name>,
        pub tier: Option<SandboxTier>,
    }

    /// Who must approve when a rule asks.
    pub struct Approvers {
        pub expires_ms: u64,
        pub quorum: u32,
        pub roles: Vec<Name>,
    }

    /// One rule. Every condition that is given must hold; a list holds if one of it does.
    pub struct Rule {
        pub agents: Vec<Name>,
        pub approvers: Option<Approvers>,
        pub capabilities: Vec<Name>,
        pub decide: Decision,
        pub effects: Vec<EffectClass>,
        pub labels: crate::records::Labels,
        pub name: Name,
        /// Unix milliseconds.
        pub not_after: Option<u64>,
        pub not_before: Option<u64>,
        pub obligations: Vec<Obligation>,
        pub risks: Vec<Risk>,
        pub roles: Vec<Name>,
        pub sessions: Vec<Name>,
        /// Globs.
        pub tools: Vec<Name>,
        pub when: Vec<Constraint>,
    }

    /// A policy; its digest is its version.
    pub struct Policy {
        /// Who has which role when deciding.
        pub approvers: BTreeMap<String, Vec<Name>>,
        pub rules: Vec<Rule>,
    }
}
