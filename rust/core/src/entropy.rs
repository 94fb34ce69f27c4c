//! Randomness as an argument: one block per request, from which salts and ids are derived in order. The
//! same request at the same time decides the same records.

use std::cell::Cell;

use serde::{Deserialize, Serialize};

use crate::canonical::{Mac, domains};
use crate::content::{Salt, Seed};
use crate::ids::{ApprovalId, CapabilityId, EnvelopeId, GrantId};

/// Thirty-two random bytes, written as hex, good for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entropy(pub [u8; 32]);

impl Serialize for Entropy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Seed(self.0).to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Entropy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = serde_json::Value::String(String::deserialize(deserializer)?);
        let seed =
            Seed::from_value(&text).ok_or_else(|| serde::de::Error::custom("entropy is 64 hex digits"))?;
        Ok(Self(seed.0))
    }
}

/// Hands out what is derived from one block.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    entropy: &'a Entropy,
    drawn: Cell<u64>,
    wall_ms: u64,
}

impl<'a> Source<'a> {
    pub(crate) fn new(entropy: &'a Entropy, wall_ms: u64) -> Self {
        Self { entropy, drawn: Cell::new(0), wall_ms }
    }

    fn draw(&self) -> [u8; 32] {
        let n = self.drawn.get();
        self.drawn.set(n + 1);
        *Mac::<domains::Random>::keyed(&self.entropy.0, format!("request\n{n}").as_bytes()).bytes()
    }

    pub(crate) fn salt(&self) -> Salt {
        let mut salt = [0u8; 16];
        salt.copy_from_slice(&self.draw()[..16]);
        Salt(salt)
    }

    pub(crate) fn seed(&self) -> Seed {
        Seed(self.draw())
    }

    pub(crate) fn jitter(&self) -> u32 {
        let block = self.draw();
        u32::from_be_bytes([block[0], block[1], block[2], block[3]])
    }

    fn ten(&self) -> [u8; 10] {
        let mut random = [0u8; 10];
        random.copy_from_slice(&self.draw()[..10]);
        random
    }

    pub(crate) fn envelope_id(&self) -> EnvelopeId {
        EnvelopeId::new(self.wall_ms, self.ten())
    }

    pub(crate) fn approval_id(&self) -> ApprovalId {
        ApprovalId::new(self.wall_ms, self.ten())
    }

    pub(crate) fn capability_id(&self) -> CapabilityId {
        CapabilityId::new(self.wall_ms, self.ten())
    }

    pub(crate) fn grant_id(&self) -> GrantId {
        GrantId::new(self.wall_ms, self.ten())
    }
}
