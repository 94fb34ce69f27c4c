//! What a run may reach. Capabilities are facts in its journal, never strings in a prompt: a restricted run
//! reaches only what it holds, and hands on only less than it has. A run that is not restricted holds
//! everything that its agent registered.
//!
//! A restriction that cannot be judged denies.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::contracts::capability::{Constraint, Right, glob_text};
use crate::ids::CapabilityId;
use crate::mutants::{Mutant, mutant};
use crate::state::{Capabilities, Held};

/// What a call wants to do with what.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub arguments: &'a Value,
    /// The capability that the caller names; else any that allows it will do.
    pub named: Option<CapabilityId>,
    pub right: Right,
    pub target: &'a str,
    pub wall_ms: u64,
}

/// Whether a call may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// The run holds everything.
    Unrestricted,
    /// This one allows it.
    By(CapabilityId),
    /// None does: why, for programs.
    No(&'static str),
}

/// Whether a run holds what a call needs.
///
/// `elsewhere`: those that another run says are revoked.
pub fn leave(held: &Capabilities, elsewhere: &BTreeSet<CapabilityId>, wanted: &Wanted<'_>) -> Leave {
    if mutant(Mutant::CapabilityIgnored) {
        return Leave::Unrestricted;
    }
    match wanted.named {
        Some(id) => refusal(held, elsewhere, id, wanted).map_or(Leave::By(id), Leave::No),
        None if !held.restricted => Leave::Unrestricted,
        None => {
            let mut all = held.held.keys();
            let found = all.find(|id| refusal(held, elsewhere, **id, wanted).is_none());
            found.map_or(Leave::No("capability.missing"), |id| Leave::By(*id))
        }
    }
}

/// Why a capability does not allow something; none if it does.
fn refusal(
    all: &Capabilities,
    elsewhere: &BTreeSet<CapabilityId>,
    id: CapabilityId,
    wanted: &Wanted<'_>,
) -> Option<&'static str> {
    let Some(held) = all.held.get(&id).filter(|held| held.to.is_none()) else {
        return Some("capability.missing");
    };
    if is_revoked(all, id) || (elsewhere.contains(&id) && !mutant(Mutant::RevokedHereOnly)) {
        return Some("capability.revoked");
    }
    if all.lineage(id).any(|one| is_expired(one, wanted.wall_ms)) {
        return Some("capability.expired");
    }
    if !held.rights.contains(&wanted.right) || !glob_text(held.target.as_str(), wanted.target) {
        return Some("capability.missing");
    }
    let allows = |constraint: &Constraint| constraint.holds(wanted.arguments).unwrap_or(false);
    let all_allow = all.lineage(id).flat_map(|one| &one.constraints).all(allows);
    (!all_allow && !mutant(Mutant::CapabilityUnconstrained)).then_some("capability.constrained")
}

fn is_revoked(all: &Capabilities, id: CapabilityId) -> bool {
    let all_of_them = if mutant(Mutant::RevokedAlone) { 1 } else { usize::MAX };
    all.lineage(id).take(all_of_them).any(|one| one.revoked)
}

fn is_expired(held: &Held, wall_ms: u64) -> bool {
    held.expires_at.is_some_and(|until| until <= wall_ms) && !mutant(Mutant::CapabilityNeverExpires)
}

/// Whether one that is held here can be made less of, or handed on.
pub fn is_usable(
    all: &Capabilities,
    elsewhere: &BTreeSet<CapabilityId>,
    id: CapabilityId,
    wall_ms: u64,
) -> bool {
    let here = all.held.get(&id).is_some_and(|held| held.to.is_none());
    here && !is_revoked(all, id)
        && !elsewhere.contains(&id)
        && !all.lineage(id).any(|one| is_expired(one, wall_ms))
}

/// Everything that restricts a capability, its ancestors' restrictions included: what another run gets.
pub fn whole(all: &Capabilities, id: CapabilityId) -> (Vec<Constraint>, Option<u64>) {
    let constraints = all.lineage(id).flat_map(|one| one.constraints.iter().cloned()).collect();
    let expires_at = all.lineage(id).filter_map(|one| one.expires_at).min();
    (constraints, expires_at)
}
