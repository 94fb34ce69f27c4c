//! The fold of the store's own stream: epoch, active policy, names, newest seal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Illegal;
use crate::chain::Head;
use crate::ids::{RunId, StoreId};
use crate::records::{Body, Name, PolicyDigest, Record, StoreCreated};

#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreState {
    pub epoch: u32,
    pub head: Head,
    pub names: BTreeMap<Name, RunId>,
    pub newer: bool,
    pub policy: Option<PolicyDigest>,
    /// The record that holds it.
    pub policy_at: Option<u64>,
    /// How many leaves the newest seal covers.
    pub sealed: u64,
    pub store: StoreId,
}

impl StoreState {
    pub(super) fn created(head: Head, created: &StoreCreated) -> Self {
        Self {
            epoch: 1,
            head,
            names: BTreeMap::new(),
            newer: false,
            policy: None,
            policy_at: None,
            sealed: 0,
            store: created.store,
        }
    }

    pub(super) fn apply(&mut self, record: &Record, head: Head) -> Result<(), Illegal> {
        let illegal = |why| Err(Illegal::new(record, why));
        self.newer |= record.is_newer();
        match &record.body {
            Body::StoreCreated(_) => return illegal("the store exists"),
            Body::StoreRestored(restored) if restored.epoch <= self.epoch => {
                return illegal("an epoch only grows");
            }
            Body::StoreRestored(restored) => self.epoch = restored.epoch,
            Body::PolicyActivated(activated) if activated.previous != self.policy => {
                return illegal("another policy was active");
            }
            Body::PolicyActivated(activated) => {
                (self.policy, self.policy_at) = (Some(activated.policy), Some(record.seq));
            }
            Body::NameTaken(taken) => {
                if self.names.insert(taken.name.clone(), taken.run).is_some() {
                    return illegal("the name is taken");
                }
            }
            Body::NameReleased(released) => {
                if self.names.remove(&released.name) != Some(released.run) {
                    return illegal("the run does not hold the name");
                }
            }
            Body::SealSigned(seal) if seal.size < self.sealed => return illegal("a seal only grows"),
            Body::SealSigned(seal) => self.sealed = seal.size,
            // Refusals, erasures and notes change nothing here.
            _ => {}
        }
        self.head = head;
        Ok(())
    }
}
