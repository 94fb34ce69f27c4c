//! The fold of a session: its grants.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Illegal;
use super::govern::GrantState;
use crate::chain::Head;
use crate::ids::GrantId;
use crate::records::{Body, Record};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionState {
    pub grants: BTreeMap<GrantId, GrantState>,
    pub head: Head,
    /// Written in part by a newer Holdfast: may be read, not changed.
    pub newer: bool,
}

impl SessionState {
    pub(super) fn created(head: Head) -> Self {
        Self { grants: BTreeMap::new(), head, newer: false }
    }

    pub(super) fn apply(&mut self, record: &Record, head: Head) -> Result<(), Illegal> {
        self.newer |= record.is_newer();
        match &record.body {
            Body::GrantCreated(created) => {
                if self.grants.insert(created.grant, GrantState::new(created)).is_some() {
                    return Err(Illegal::new(record, "the grant exists"));
                }
            }
            Body::GrantRevoked(revoked) => match self.grants.get_mut(&revoked.grant) {
                Some(grant) => grant.revoked = true,
                None => return Err(Illegal::new(record, "no such grant")),
            },
            Body::SessionCreated(_) => return Err(Illegal::new(record, "the session exists")),
            // Artifacts, checkpoints, envelopes and notes are read from the journal; nothing folds from them.
            _ => {}
        }
        self.head = head;
        Ok(())
    }
}
