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
use crate::contracts::capability::glob_text;
use crate::contracts::policy::{Approvers, Decision, Obligation, ObligationKind, Policy, Rule};
use crate::contracts::tool::{ToolApproval, ToolSpec};
use crate::ids::SessionId;
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    EffectClass, Key, Labels, Name, PolicyDecided, PolicyDigest, Reason, Risk, SandboxGuard, SandboxTier,
    Text, Token,
};
use crate::redact;

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
    /// What the capability is for that the call uses, if it uses one.
    pub capability: Option<&'a Key>,
    pub evaluations: &'a [Evaluation],
    /// What the sandbox enforces.
    pub guards: &'a [SandboxGuard],
    pub labels: &'a Labels,
    /// What nobody on the way is shown.
    pub redact: &'a [Name],
    pub role: &'a Name,
    /// Where the body would run.
    pub sandbox: SandboxTier,
    pub session: Option<SessionId>,
    pub tool: About<'a>,
    /// A hook wants a person to look.
    pub wants_approval: Option<&'a Name>,
    pub wall_ms: u64,
}

/// What rules need to know of a tool.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    pub approval: ToolApproval,
    pub effect: EffectClass,
    pub name: &'a Name,
    pub risk: Risk,
}

impl<'a> About<'a> {
    pub fn of(tool: &'a ToolSpec) -> Self {
        Self { approval: tool.approval, effect: tool.effect, name: &tool.name, risk: tool.risk }
    }
}

/// The decision, and who must approve if it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    pub approvers: Approvers,
    pub decided: PolicyDecided,
}

impl Ruling {
    /// A refusal that no rule has to be asked about.
    pub(crate) fn refusal(policy: PolicyDigest, code: &str) -> Self {
        let (decision, errors) = (Decision::Deny, vec![reason(code, None, None)]);
        let decided =
            PolicyDecided { decision, errors, obligations: Vec::new(), policy, reasons: Vec::new() };
        Self { approvers: Approvers { expires_ms: 0, quorum: 1, roles: Vec::new() }, decided }
    }

    /// A hook may make a request stricter, never looser: more approvers, less time, fewer roles. If nobody
    /// is left who could approve, the call is denied.
    pub(crate) fn tighten(&mut self, change: &Value) {
        if self.tightened(change).is_none() {
            self.decided.decision = Decision::Deny;
            self.decided.errors.push(reason("hook.bad_request", None, None));
        }
    }

    /// None if the change says something that is not known, or leaves nobody to approve.
    fn tightened(&mut self, change: &Value) -> Option<()> {
        let approvers = &mut self.approvers;
        for (word, value) in change.as_object()? {
            match word.as_str() {
                "quorum" => approvers.quorum = approvers.quorum.max(u32::try_from(value.as_u64()?).ok()?),
                "expires_ms" => approvers.expires_ms = approvers.expires_ms.min(value.as_u64()?),
                "roles" => {
                    let wanted: Option<Vec<Name>> =
                        value.as_array()?.iter().map(|role| role.as_str().and_then(Name::new)).collect();
                    let wanted = wanted?;
                    if approvers.roles.is_empty() {
                        approvers.roles = wanted;
                    } else {
                        approvers.roles.retain(|role| wanted.contains(role));
                    }
                    approvers.roles.first()?;
                }
                _ => return None,
            }
        }
        Some(())
    }
}

/// The fields of the arguments that rules want nobody on the way to see. Hooks see a call before it is decided
/// about and may change its arguments, so conditions on them, and on the capability, do not count here.
pub fn redactions(active: &ActivePolicy, question: &Question<'_>) -> Vec<Name> {
    let redacts = |obligation: &&Obligation| obligation.kind == ObligationKind::Redact;
    let rules = active.policy.rules.iter().filter(|rule| rule.obligations.iter().any(|one| redacts(&one)));
    let concerned: Vec<&Rule> = rules.filter(|rule| concerns(rule, question)).collect();
    let wanted = concerned.iter().flat_map(|rule| rule.obligations.iter().filter(redacts));
    redact::fields(wanted.flat_map(|obligation| &obligation.fields).chain(question.redact))
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
    found.oblige(question);
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
        // Whoever makes the call ask in the end: a tool, a hook or another rule.
        if rule.decide == Decision::Ask || !mutant(Mutant::ApproversOfAsking) {
            self.asking.extend(rule.approvers.clone());
        }
    }

    /// What the tool asks for by itself, and the default for what nobody has ruled about.
    fn of_tool(&mut self, question: &Question<'_>) {
        let tool = &question.tool;
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
    fn oblige(&mut self, question: &Question<'_>) {
        let sandbox = question.sandbox;
        let enforced = |name: &Name| question.guards.iter().any(|guard| guard.as_str() == name.as_str());
        for obligation in std::mem::take(&mut self.obligations) {
            match obligation.kind {
                ObligationKind::Sandbox
                    if obligation.tier.is_some_and(|tier| sandbox >= tier)
                        && obligation.fields.iter().all(enforced) => {}
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
                // What is hidden is said once, for all rules.
                ObligationKind::Redact if hides(&obligation, question) => continue,
                ObligationKind::Redact => self.fails("obligation.redact", None),
            }
            self.obligations.push(obligation);
        }
        if !question.redact.is_empty() {
            self.obligations.push(Obligation {
                fields: question.redact.to_vec(),
                kind: ObligationKind::Redact,
                quorum: None,
                roles: Vec::new(),
                tier: None,
            });
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

/// Whether what is shown of a call lacks all that an obligation names.
fn hides(obligation: &Obligation, question: &Question<'_>) -> bool {
    let hidden = |field: &Name| redact::covered(question.redact, field);
    !obligation.fields.is_empty() && obligation.fields.iter().all(hidden)
}

/// Whether every condition of a rule holds.
fn holds(rule: &Rule, question: &Question<'_>) -> bool {
    concerns(rule, question)
        && (rule.capabilities.is_empty() || through(rule, question))
        && rule
            .when
            .iter()
            .all(|constraint| constraint.holds(question.arguments).unwrap_or(rule.decide != Decision::Allow))
}

/// Whether a rule is about such a call, whatever its arguments and the capability that it uses.
fn concerns(rule: &Rule, question: &Question<'_>) -> bool {
    let tool = &question.tool;
    let listed = |names: &[Name], name: &Name| names.is_empty() || names.iter().any(|one| glob(one, name));
    listed(&rule.agents, question.agent)
        && listed(&rule.roles, question.role)
        && listed(&rule.tools, tool.name)
        && (rule.effects.is_empty() || rule.effects.contains(&tool.effect))
        && (rule.risks.is_empty() || rule.risks.contains(&tool.risk))
        && (rule.sessions.is_empty()
            || question.session.is_some_and(|id| {
                let id = id.to_string();
                rule.sessions.iter().any(|one| glob_text(one.as_str(), &id))
            }))
        && rule.labels.iter().all(|(name, value)| question.labels.get(name) == Some(value))
        && rule.not_before.is_none_or(|from| from <= question.wall_ms)
        && rule.not_after.is_none_or(|until| question.wall_ms < until)
}

/// Whether a call uses one of the rule's capabilities. One that uses none is helped by no rule about them.
fn through(rule: &Rule, question: &Question<'_>) -> bool {
    match question.capability {
        Some(used) => rule.capabilities.iter().any(|one| glob_text(one.as_str(), used.as_str())),
        None => rule.decide != Decision::Allow,
    }
}

/// Whether a name fits a pattern of `*` and `?`.
fn glob(pattern: &Name, name: &Name) -> bool {
    glob_text(pattern.as_str(), name.as_str())
}
