//! The table of a call's states; nothing else. The fold and the gateway ask here: what is not in the table
//! is called illegal by the one and refused by the other.

use serde::{Deserialize, Serialize};

use crate::mutants::{Mutant, mutant};
use crate::records::{EffectClass, EffectStatus};

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPhase {
    /// Not sent off: being decided, or waiting.
    Open,
    /// A permit left and no outcome is known yet.
    Started,
    /// It may or may not have happened; `doubt` says why.
    Doubted,
    Settled,
    /// Recorded, and no longer made by the code; a person accepted that.
    Abandoned,
}

impl CallPhase {
    pub const ALL: &'static [Self] =
        &[Self::Open, Self::Started, Self::Doubted, Self::Settled, Self::Abandoned];
}

/// What the table must know of a call beside its phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    pub effect: EffectClass,
    /// The other side honours the key of its permits.
    pub keyed: bool,
    /// Its outcome is not served: it is sent off, or asked about, once more.
    pub rerun: bool,
    /// An older dispatch of it is still in doubt: that the newest one did nothing says nothing about it.
    pub unresolved: bool,
}

/// What can happen to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEvent {
    /// A permit leaves.
    Started,
    /// The outcome of the newest dispatch is known.
    Settled(EffectStatus),
    /// Its own frame has done it: a commit, a message, a timer that fired.
    Done,
    /// A hook, a rule, a budget or a person said no.
    Denied,
    Doubted,
    Resolved,
    /// A report of a worker that had lost its lease.
    Late,
    Compensated,
    /// A hook wants a read once more.
    Redone,
    Abandoned,
}

impl CallEvent {
    pub const ALL: &'static [Self] = &[
        Self::Started,
        Self::Settled(EffectStatus::Succeeded),
        Self::Settled(EffectStatus::Failed),
        Self::Settled(EffectStatus::NoEffect),
        Self::Settled(EffectStatus::Cancelled),
        Self::Settled(EffectStatus::TimedOut),
        Self::Done,
        Self::Denied,
        Self::Doubted,
        Self::Resolved,
        Self::Late,
        Self::Compensated,
        Self::Redone,
        Self::Abandoned,
    ];
}

/// A call after an event, if the event is legal.
pub fn call_after(phase: CallPhase, traits: Traits, event: CallEvent) -> Option<CallPhase> {
    use CallEvent as E;
    use CallPhase as P;
    let write = traits.effect == EffectClass::Write;
    let legal = match (phase, event) {
        // A permit: for a call that was never sent off, that replay sends off again, that may be repeated
        // because it is no write, or that may be repeated because the other side honours its key.
        (P::Open, E::Started) => true,
        (P::Settled, E::Started) => traits.rerun,
        (P::Started, E::Started) => !write,
        (P::Doubted, E::Started) => write && (traits.keyed || mutant(Mutant::RepeatDoubtedWrite)),

        // A write that timed out is unknown, and so never settled as that.
        (P::Started | P::Open, E::Settled(EffectStatus::TimedOut)) => !write,
        (P::Started, E::Settled(_)) => true,
        (P::Open, E::Settled(EffectStatus::NoEffect | EffectStatus::Cancelled)) => true,
        (P::Open, E::Settled(EffectStatus::Succeeded | EffectStatus::Failed)) => !write,

        (P::Open, E::Done | E::Denied) => true,
        (P::Settled, E::Done | E::Denied) => traits.rerun,
        // A read that was on its way when its worker died may be refused before it runs again.
        (P::Started, E::Denied) => !write,

        (P::Started, E::Doubted) => write,
        (P::Doubted, E::Resolved) => write,
        (P::Doubted, E::Late) => write,
        (P::Settled | P::Abandoned, E::Late) => true,
        (P::Settled, E::Compensated) => write,
        (P::Settled, E::Redone) => !write,
        (_, E::Abandoned) => true,

        (P::Open, E::Doubted | E::Resolved | E::Late | E::Compensated | E::Redone) => false,
        // Whoever holds the step settles it; a worker that lost it hears that its write is in doubt first.
        (P::Started, E::Done | E::Resolved | E::Late | E::Compensated | E::Redone) => false,
        (P::Doubted, E::Settled(_) | E::Done | E::Denied | E::Doubted | E::Compensated | E::Redone) => false,
        (P::Settled, E::Settled(_) | E::Doubted | E::Resolved) => false,
        (
            P::Abandoned,
            E::Started
            | E::Settled(_)
            | E::Done
            | E::Denied
            | E::Doubted
            | E::Resolved
            | E::Compensated
            | E::Redone,
        ) => false,
    };
    legal.then(|| leads_to(phase, traits, event))
}

fn leads_to(phase: CallPhase, traits: Traits, event: CallEvent) -> CallPhase {
    match event {
        CallEvent::Settled(EffectStatus::NoEffect | EffectStatus::Cancelled)
            if phase == CallPhase::Started && traits.unresolved && !mutant(Mutant::ForgetDoubt) =>
        {
            CallPhase::Doubted
        }
        CallEvent::Started => CallPhase::Started,
        CallEvent::Settled(_) | CallEvent::Done | CallEvent::Denied | CallEvent::Resolved => {
            CallPhase::Settled
        }
        CallEvent::Doubted => CallPhase::Doubted,
        CallEvent::Compensated | CallEvent::Redone => CallPhase::Settled,
        CallEvent::Late => phase,
        CallEvent::Abandoned => CallPhase::Abandoned,
    }
}
