//! Commands on what a run holds: made less of, handed on, taken back. What was handed on is taken back by an
//! envelope to who has it.

use super::request::{Claim, Command, Decided, Envelope, EnvelopeBody, NewCapability, Payload, seal_into};
use super::{Case, Refused};
use crate::capability::{is_usable, whole};
use crate::contracts::capability::{Constraint, Right};
use crate::ids::{CapabilityId, RunId, StreamId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    CapabilityAttenuated, CapabilityGranted, CapabilityRevoked, CapabilityTransferred, Draft,
};
use crate::state::{Held, RunState};

impl Case<'_> {
    pub(super) fn decide_capability(&self, command: &Command) -> Result<Decided, Refused> {
        match command {
            Command::Attenuate { capability, claim, constraints, expires_at, parent, rights } => {
                self.attenuate(claim, *parent, *capability, (rights, constraints, *expires_at))
            }
            Command::Transfer { capability, claim, to } => self.transfer(claim, *capability, *to),
            Command::RevokeCapability { capability, claim, reason } => {
                self.revoke_capability(claim.as_ref(), *capability, reason.as_ref())
            }
            _ => Err(Refused::NoSuchCapability), // not one of them
        }
    }

    /// What a new run is given.
    pub(super) fn endowed(&self, given: &[NewCapability]) -> Result<Vec<Draft>, Refused> {
        if given.len() > limits::CAPABILITIES_MAX {
            return Err(Refused::LimitExceeded("capabilities_max"));
        }
        let drafts = given.iter().map(|one| {
            check_constraints(&one.constraints)?;
            self.check_time(one.expires_at)?;
            let body = CapabilityGranted {
                capability: self.source.capability_id(),
                constraints: one.constraints.clone(),
                expires_at: one.expires_at,
                from_run: None,
                rights: one.rights.clone(),
                target: one.target.clone(),
            };
            Ok(self.draft(body))
        });
        drafts.collect()
    }

    /// One that is held and can be used.
    fn held_one<'r>(&self, run: &'r RunState, id: CapabilityId) -> Result<&'r Held, Refused> {
        let found = run.capabilities.held.get(&id);
        let elsewhere = &self.view.revoked_elsewhere;
        let usable = is_usable(&run.capabilities, elsewhere, id, self.now.wall_ms);
        found.filter(|_| usable).ok_or(Refused::NoSuchCapability)
    }

    fn attenuate(
        &self,
        claim: &Claim,
        parent: CapabilityId,
        capability: CapabilityId,
        (rights, constraints, expires_at): (&[Right], &[Constraint], Option<u64>),
    ) -> Result<Decided, Refused> {
        let (run, step) = (self.open_run()?, self.held(claim)?);
        let from = self.held_one(run, parent)?;
        let more = rights.iter().any(|right| !from.rights.contains(right));
        if more && !mutant(Mutant::AmplifyCapability) {
            return Err(Refused::CapabilityExceeded);
        }
        if run.capabilities.held.contains_key(&capability) {
            return Err(Refused::CapabilityExceeded); // an id is for one capability
        }
        check_constraints(constraints)?;
        self.check_time(expires_at)?;
        if run.capabilities.held.len() >= limits::CAPABILITIES_MAX {
            return Err(Refused::LimitExceeded("capabilities_max"));
        }
        let body = CapabilityAttenuated {
            capability,
            constraints: constraints.to_vec(),
            expires_at,
            parent,
            rights: rights.to_vec(),
        };
        Ok(Decided::of(vec![self.step_draft(body, step, Some(claim.fence))]))
    }

    /// Needs the right to grant; the receiver gets every restriction with it.
    fn transfer(&self, claim: &Claim, id: CapabilityId, to: RunId) -> Result<Decided, Refused> {
        let (run, step) = (self.open_run()?, self.held(claim)?);
        let held = self.held_one(run, id)?;
        if !held.rights.contains(&Right::Grant) || to == run.id {
            return Err(Refused::CapabilityExceeded);
        }
        if !self.view.receiver_open {
            return Err(Refused::NoSuchRun);
        }
        let (constraints, expires_at) = whole(&run.capabilities, id);
        let (rights, target) = (held.rights.clone(), held.target.clone());
        let body = EnvelopeBody::Capability { capability: id, constraints, expires_at, rights, target };
        let envelope = self.envelope(run, to, body);
        let body = CapabilityTransferred { capability: id, to };
        let drafts = vec![self.step_draft(body, step, Some(claim.fence))];
        Ok(Decided { drafts, envelopes: vec![envelope], ..Decided::default() })
    }

    fn envelope(&self, run: &RunState, to: RunId, body: EnvelopeBody) -> Envelope {
        Envelope { body, from: StreamId::Run(run.id), id: self.source.envelope_id(), to }
    }

    /// By a person, or by the run itself.
    fn revoke_capability(
        &self,
        claim: Option<&Claim>,
        id: CapabilityId,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        match claim {
            Some(claim) => drop(self.held(claim)?),
            None => self.person()?,
        }
        let mut sealed = Vec::new();
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        let mut decided = self.revoked(run, id)?;
        for draft in &mut decided.drafts {
            if let crate::records::Body::CapabilityRevoked(body) = &mut draft.body {
                body.reason.clone_from(&reason);
                draft.sealed.append(&mut sealed);
            }
        }
        Ok(decided)
    }

    /// It is gone here, and whoever has what was made of it is told.
    fn revoked(&self, run: &RunState, id: CapabilityId) -> Result<Decided, Refused> {
        let held = run.capabilities.held.get(&id).ok_or(Refused::NoSuchCapability)?;
        if held.revoked {
            return Ok(Decided::nothing());
        }
        let elsewhere = run.capabilities.derived(id).into_iter().filter_map(|one| {
            let to = run.capabilities.held.get(&one)?.to?;
            Some(self.envelope(run, to, EnvelopeBody::CapabilityRevoked { capability: one }))
        });
        let envelopes = elsewhere.collect();
        let draft = self.draft(CapabilityRevoked { capability: id, reason: None });
        Ok(Decided { drafts: vec![draft], envelopes, ..Decided::default() })
    }

    /// Another run handed one over.
    pub(super) fn capability_came(
        &self,
        run: &RunState,
        from: StreamId,
        given: CapabilityGranted,
    ) -> Result<Decided, Refused> {
        let StreamId::Run(from) = from else { return Err(Refused::Misaddressed) };
        let known = run.capabilities.held.get(&given.capability);
        if known.is_some_and(|held| held.to.is_none()) {
            return Err(Refused::CapabilityExceeded);
        }
        if run.capabilities.held.len() >= limits::CAPABILITIES_MAX {
            return Err(Refused::LimitExceeded("capabilities_max"));
        }
        Ok(Decided::of(vec![self.draft(CapabilityGranted { from_run: Some(from), ..given })]))
    }

    /// One that another run had handed over is taken back.
    pub(super) fn capability_went(&self, run: &RunState, id: CapabilityId) -> Result<Decided, Refused> {
        self.revoked(run, id)
    }
}

fn check_constraints(constraints: &[Constraint]) -> Result<(), Refused> {
    if constraints.len() > limits::CONSTRAINTS_MAX {
        return Err(Refused::LimitExceeded("constraints_max"));
    }
    Ok(())
}
