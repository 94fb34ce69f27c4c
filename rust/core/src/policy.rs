//! What policy says about a call: rules as data, the tool's own wish, and evaluators that only tighten.
//!
//! `deny` wins over `ask` wins over `allow`, whoever says it. A condition that cannot be judged (the argument
//! is missing or of another type) never helps a call: an allowing rule does not hold, a restricting one
//! does. Whatever fails denies.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::CanonicalError;
use crate::contracts::capability::{Comparison, Constraint};
use crate::contracts::policy::{Approvers, Decision, Obligation, ObligationKind, Policy, Rule};
use crate::contracts::tool::{ToolApproval, ToolSpec};
use crate::ids::SessionId;
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    EffectClass, Labels, Name, PolicyDecided, PolicyDigest, Reason, Risk, SandboxTier, Text, Token,
};

/// A policy and its digest, which is its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivePolicy {
    pub digest: PolicyDigest,
    pub policy: Policy,
}

impl ActivePolicy {
    pub fn new(policy: Policy) -> Result<Self, CanonicalError> {
        Ok(Self { digest: PolicyDigest::of(&policy)?, policy })
    }

    /// No rules: what tools and risks ask for by themselves.
    pub fn none() -> &'static Self {
        static NONE: OnceLock<ActivePolicy> = OnceLock::new();
        NONE.get_or_init(|| {
            let policy = Policy { approvers: BTreeMap::new(), rules: Vec::new() };
            // An empty policy has canonical bytes; the fallback is there because a core never panics.
            let digest = PolicyDigest::of(&policy).unwrap_or_else(|_| PolicyDigest::of_bytes(&[]));
            Self { digest, policy }
        })
    }
}

/// What an evaluator said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    pub evaluator: Name,
    /// None: it failed, timed out or is missing.
    pub decision: Option<Decision>,
    pub summary: Option<Text>,
}

/// What a decision is about.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub agent: &'a Name,
    pub arguments: &'a Value,
    pub evaluations: &'a [Evaluation],
    pub labels: &'a Labels,
    pub role: &'a Name,
    /// Where the body would run.
    pub sandbox: SandboxTier,
    pub session: Option<SessionId>,
    pub tool: &'a ToolSpec,
    /// A hook wants a person to look.
    pub wants_approval: Option<&'a Name>,
    pub wall_ms: u64,
}

/// The decision, and who must approve if it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    pub approvers: Approvers,
    pub decided: PolicyDecided,
}

impl Ruling {
    /// A hook may make a request stricter, never looser: more approvers, less time, fewer roles. If nobody
    /// is left who could approve, the call is denied.
    pub(crate) fn tighten(&mut self, change: &Value) {
        let number = |name: &str| change.get(name).and_then(Value::as_u64);
        if let Some(quorum) = number("quorum") {
            self.approvers.quorum = self.approvers.quorum.max(u32::try_from(quorum).unwrap_or(u32::MAX));
        }
        if let Some(expires) = number("expires_ms") {
            self.approvers.expires_ms = self.approvers.expires_ms.min(expires);
        }
        let Some(Value::Array(roles)) = change.get("roles") else { return };
        let wanted: Vec<Name> = roles.iter().filter_map(Value::as_str).filter_map(Name::new).collect();
        if self.approvers.roles.is_empty() {
            self.approvers.roles = wanted;
        } else {
            self.approvers.roles.retain(|role| wanted.contains(role));
        }
        if self.approvers.roles.is_empty() {
            self.decided.decision = Decision::Deny;
            self.decided.errors.push(reason("policy.approvers_conflict", None, None));
        }
    }
}

/// Decides about a call.
pub fn decide(active: &ActivePolicy, question: &Question<'_>) -> Ruling {
    let mut found = Found::default();
    for rule in &active.policy.rules {
        if holds(rule, question) {
            found.rule(rule);
        }
    }
    found.of_tool(question);
    for evaluation in question.evaluations {
        found.evaluated(evaluation);
    }
    if let Some(hook) = question.wants_approval {
        found.says(Decision::Ask, "hook.requests_approval", Some(hook), None);
    }
    found.oblige(question.sandbox);
    found.ruling(active.digest)
}

/// What has been said so far.
#[derive(Default)]
struct Found {
    decision: Option<Decision>,
    ruled: bool,
    reasons: Vec<Reason>,
    errors: Vec<Reason>,
    obligations: Vec<Obligation>,
    asking: Vec<Approvers>,
}

impl Found {
    fn says(&mut self, decision: Decision, code: &str, rule: Option<&Name>, summary: Option<&Text>) {
        let lenient = mutant(Mutant::AllowWins) && self.decision.is_some();
        self.decision = match self.decision {
            Some(said) if lenient => Some(said.min(decision)),
            said => said.max(Some(decision)),
        };
        self.reasons.push(reason(code, rule, summary));
    }

    fn fails(&mut self, code: &str, rule: Option<&Name>) {
        if !mutant(Mutant::ErrorsAllow) {
            self.decision = Some(Decision::Deny);
        }
        self.errors.push(reason(code, rule, None));
    }

    fn rule(&mut self, rule: &Rule) {
        self.ruled = true;
        self.says(rule.decide, "policy.rule", Some(&rule.name), None);
        self.obligations.extend(rule.obligations.iter().cloned());
        if rule.decide == Decision::Ask {
            self.asking.extend(rule.approvers.clone());
        }
    }

    /// What the tool asks for by itself, and the default for what nobody has ruled about.
    fn of_tool(&mut self, question: &Question<'_>) {
        let tool = question.tool;
        if tool.approval == ToolApproval::Always {
            self.says(Decision::Ask, "tool.approval_always", None, None);
        }
        let risky = tool.effect == EffectClass::Write && matches!(tool.risk, Risk::High | Risk::Critical);
        if risky && !self.ruled && tool.approval != ToolApproval::Never && !mutant(Mutant::RiskAllowed) {
            self.says(Decision::Ask, "policy.default_ask", None, None);
        }
        if self.decision.is_none() {
            self.says(Decision::Allow, "policy.default_allow", None, None);
        }
    }

    /// An evaluator that allows says nothing: it can only tighten.
    fn evaluated(&mut self, evaluation: &Evaluation) {
        let (by, summary) = (Some(&evaluation.evaluator), evaluation.summary.as_ref());
        match evaluation.decision {
            None => self.fails("policy.evaluator_failed", by),
            Some(Decision::Allow) if mutant(Mutant::EvaluatorLoosens) => {
                self.decision = Some(Decision::Allow);
            }
            Some(Decision::Allow) => {}
            Some(stricter) => self.says(stricter, "policy.evaluator", by, summary),
        }
    }

    /// An obligation is enforced or the call is refused.
    fn oblige(&mut self, sandbox: SandboxTier) {
        for obligation in std::mem::take(&mut self.obligations) {
            match obligation.kind {
                ObligationKind::Sandbox if obligation.tier.is_some_and(|tier| sandbox >= tier) => {}
                ObligationKind::Sandbox if mutant(Mutant::ObligationIgnored) => {}
                ObligationKind::Sandbox => self.fails("obligation.sandbox", None),
                ObligationKind::Approvers => {
                    self.says(Decision::Ask, "obligation.approvers", None, None);
                    self.asking.push(Approvers {
                        expires_ms: limits::APPROVAL_MS,
                        quorum: obligation.quorum.unwrap_or(1),
                        roles: obligation.roles.clone(),
                    });
                }
                ObligationKind::Redact => self.fails("obligation.redact_unsupported", None),
            }
            self.obligations.push(obligation);
        }
    }

    fn ruling(mut self, policy: PolicyDigest) -> Ruling {
        let approvers = strictest(&self.asking);
        if approvers.is_none() && self.decision == Some(Decision::Ask) {
            self.fails("policy.approvers_conflict", None);
        }
        let Self { decision, reasons, errors, obligations, .. } = self;
        let decision = decision.unwrap_or(Decision::Deny);
        Ruling {
            approvers: approvers.unwrap_or(Approvers { expires_ms: 0, quorum: 1, roles: Vec::new() }),
            decided: PolicyDecided { decision, errors, obligations, policy, reasons },
        }
    }
}

/// Who satisfies all who ask: the largest quorum, the shortest time, the roles that all of them accept.
/// None if there are none such.
fn strictest(asking: &[Approvers]) -> Option<Approvers> {
    let mut strictest = Approvers { expires_ms: limits::APPROVAL_MS, quorum: 1, roles: Vec::new() };
    if !asking.is_empty() {
        strictest.expires_ms = asking.iter().map(|one| one.expires_ms).min().unwrap_or(limits::APPROVAL_MS);
    }
    for one in asking {
        strictest.quorum = strictest.quorum.max(one.quorum);
        if one.roles.is_empty() {
            continue;
        }
        if strictest.roles.is_empty() {
            strictest.roles.clone_from(&one.roles);
            continue;
        }
        strictest.roles.retain(|role| one.roles.contains(role));
        if strictest.roles.is_empty() {
            return None;
        }
    }
    Some(strictest)
}

fn reason(code: &str, rule: Option<&Name>, summary: Option<&Text>) -> Reason {
    let code = Token::new(code).unwrap_or_else(Token::unknown);
    Reason { code, rule: rule.cloned(), summary: summary.cloned() }
}

/// Whether every condition of a rule holds.
fn holds(rule: &Rule, question: &Question<'_>) -> bool {
    let tool = question.tool;
    let listed = |names: &[Name], name: &Name| names.is_empty() || names.iter().any(|one| glob(one, name));
    let session = question.session.map(|id| id.to_string());
    listed(&rule.agents, question.agent)
        && listed(&rule.roles, question.role)
        && listed(&rule.tools, &tool.name)
        && (rule.effects.is_empty() || rule.effects.contains(&tool.effect))
        && (rule.risks.is_empty() || rule.risks.contains(&tool.risk))
        && (rule.sessions.is_empty()
            || session.is_some_and(|id| rule.sessions.iter().any(|one| one.as_str() == id)))
        && rule.labels.iter().all(|(name, value)| question.labels.get(name) == Some(value))
        && rule.not_before.is_none_or(|from| from <= question.wall_ms)
        && rule.not_after.is_none_or(|until| question.wall_ms < until)
        && rule.when.iter().all(|constraint| {
            satisfied(constraint, question.arguments).unwrap_or(rule.decide != Decision::Allow)
        })
}

/// Whether a name fits a pattern of `*` and `?`.
fn glob(pattern: &Name, name: &Name) -> bool {
    glob_text(pattern.as_str(), name.as_str())
}

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

/// Whether arguments satisfy a constraint; none if that cannot be told.
pub(crate) fn satisfied(constraint: &Constraint, arguments: &Value) -> Option<bool> {
    let mut found = arguments;
    for part in constraint.argument.as_str().split('.') {
        found = found.get(part)?;
    }
    match (constraint.comparison, &constraint.value) {
        (Comparison::Equals, expected) => Some(same(found, expected)),
        (Comparison::OneOf, Value::Array(several)) => Some(several.iter().any(|one| same(found, one))),
        (Comparison::Max, limit) => Some(found.as_f64()? <= limit.as_f64()?),
        (Comparison::Min, limit) => Some(found.as_f64()? >= limit.as_f64()?),
        (Comparison::Glob, Value::String(pattern)) => Some(glob_text(pattern, found.as_str()?)),
        (Comparison::OneOf | Comparison::Glob, _) => None,
    }
}

/// Equal as JSON: 1 and 1.0 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.total_cmp(&other).is_eq(),
        _ => one == other,
    }
}
