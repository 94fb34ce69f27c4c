//! The fold of what a run holds: capabilities that it was given, those that it made of them, and which of
//! them are gone. A restricted run reaches only what it holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Illegal;
use crate::contracts::capability::{Constraint, Right};
use crate::ids::{CapabilityId, RunId};
use crate::records::{Body, Key, Record};

/// One capability.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Its own; those of what it was made of hold too.
    pub constraints: Vec<Constraint>,
    pub expires_at: Option<u64>,
    /// The run that handed it over.
    pub from_run: Option<RunId>,
    /// What it was made of, if that is held here.
    pub parent: Option<CapabilityId>,
    pub revoked: bool,
    pub rights: Vec<Right>,
    /// What it is for: a glob over the names of tools, agents or runs.
    pub target: Key,
    /// The run that has it instead.
    pub to: Option<RunId>,
}

/// What a run holds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    pub held: BTreeMap<CapabilityId, Held>,
    pub restricted: bool,
}

impl Capabilities {
    pub(super) fn new(restricted: bool) -> Self {
        Self { held: BTreeMap::new(), restricted }
    }

    /// A capability and all that it was made of, the nearest first.
    pub fn lineage(&self, id: CapabilityId) -> impl Iterator<Item = &Held> {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let held = self.held.get(&next?)?;
            next = held.parent;
            Some(held)
        })
    }

    /// A capability and all that was made of it here.
    pub fn derived(&self, id: CapabilityId) -> Vec<CapabilityId> {
        let mut found = vec![id];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            at += 1;
            let children = self.held.iter().filter(|(_, held)| held.parent == Some(parent));
            found.extend(children.map(|(id, _)| *id));
        }
        found
    }

    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Illegal> {
        match &record.body {
            Body::CapabilityGranted(body) => {
                let held = Held {
                    constraints: body.constraints.clone(),
                    expires_at: body.expires_at,
                    from_run: body.from_run,
                    parent: None,
                    revoked: false,
                    rights: body.rights.clone(),
                    target: body.target.clone(),
                    to: None,
                };
                self.add(record, body.capability, held)
            }
            Body::CapabilityAttenuated(body) => {
                let parent = self.held.get(&body.parent);
                let Some(parent) = parent.filter(|held| held.to.is_none()) else {
                    return Err(Illegal::new(record, "it is made of something that is not held"));
                };
                if body.rights.iter().any(|right| !parent.rights.contains(right)) {
                    return Err(Illegal::new(record, "it allows more than what it is made of"));
                }
                let held = Held {
                    constraints: body.constraints.clone(),
                    expires_at: body.expires_at,
                    from_run: None,
                    parent: Some(body.parent),
                    revoked: false,
                    rights: body.rights.clone(),
                    target: parent.target.clone(),
                    to: None,
                };
                self.add(record, body.capability, held)
            }
            Body::CapabilityTransferred(body) => {
                self.one(record, body.capability)?.to = Some(body.to);
                Ok(())
            }
            Body::CapabilityRevoked(body) => {
                // What was made of it is gone with it: whoever asks looks at the whole lineage.
                self.one(record, body.capability)?.revoked = true;
                Ok(())
            }
            _ => Err(Illegal::new(record, "it is about no capability")),
        }
    }

    fn add(&mut self, record: &Record, id: CapabilityId, mut held: Held) -> Result<(), Illegal> {
        match self.held.get(&id) {
            Some(old) if old.to.is_none() => return Err(Illegal::new(record, "the capability exists")),
            // One that comes back is held again, as what it was: made of the same, and no less revoked.
            Some(old) => {
                held.parent = old.parent;
                held.revoked |= old.revoked;
            }
            None => {}
        }
        self.held.insert(id, held);
        Ok(())
    }

    fn one(&mut self, record: &Record, id: CapabilityId) -> Result<&mut Held, Illegal> {
        self.held.get_mut(&id).ok_or_else(|| Illegal::new(record, "no such capability"))
    }
}
