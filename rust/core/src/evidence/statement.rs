//! DSSE envelopes: a payload of a type, and signatures over both. Used for in-toto statements about bundles.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::note::{NoteError, SignerKey, VerifierKey};

/// What our payloads are.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// What is signed: type and payload with their lengths, so that none passes for the other.
pub fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    pub keyid: String,
    pub sig: String,
}

/// An envelope as JSON has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Envelope {
    pub payload: String,
    pub payload_type: String,
    pub signatures: Vec<EnvelopeSignature>,
}

impl Envelope {
    pub fn sign(payload: &[u8], key: &SignerKey) -> Self {
        let sig = BASE64_STANDARD.encode(key.sign(&pre_authentication(PAYLOAD_TYPE, payload)));
        let signature = EnvelopeSignature { keyid: key.verifier().key_id(), sig };
        Self {
            payload: BASE64_STANDARD.encode(payload),
            payload_type: PAYLOAD_TYPE.to_owned(),
            signatures: vec![signature],
        }
    }

    /// The payload, if the key has signed it.
    pub fn open(&self, key: &VerifierKey) -> Result<Vec<u8>, NoteError> {
        let payload = BASE64_STANDARD.decode(&self.payload);
        let payload = payload.map_err(|_| NoteError::BadNote("its payload is not base64"))?;
        if self.payload_type != PAYLOAD_TYPE {
            return Err(NoteError::BadNote("its payload is of another type"));
        }
        let own = self.signatures.iter().find(|one| one.keyid == key.key_id());
        let own = own.ok_or_else(|| NoteError::Unsigned(key.key_id()))?;
        let signed = pre_authentication(&self.payload_type, &payload);
        let good = BASE64_STANDARD.decode(&own.sig).is_ok_and(|sig| key.verifies(&signed, &sig));
        if good { Ok(payload) } else { Err(NoteError::Forged(key.key_id())) }
    }
}
