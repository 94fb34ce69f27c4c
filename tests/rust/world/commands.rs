//! Short words for the commands that tests give.

use holdfast_core::matching::Asked;
use holdfast_core::records::*;
use holdfast_core::run::*;
use serde_json::json;

use super::*;

pub fn write_call(lane: &str, tool: &str, args: &Value) -> Asked {
    Asked {
        digest: SEED.call_digest("tool", tool, args).unwrap(),
        effect: EffectClass::Write,
        key: None,
        kind: CallKind::Tool,
        lane: name(lane),
        name: name(tool),
    }
}

pub fn read_call(lane: &str, tool: &str) -> Asked {
    Asked { effect: EffectClass::Read, ..write_call(lane, tool, &json!({})) }
}

pub fn complete(claim: Claim) -> Command {
    Command::Complete { claim, expected_version: None, result: Some(value(json!("done"))), patch: None }
}

pub fn fail(claim: Claim, retryable: bool) -> Command {
    Command::Fail { claim, failure: failure(retryable), message: None, ended_by: vec![] }
}

pub fn patch(claim: Claim, version: u64) -> Command {
    Command::Patch { claim, patch: value(json!({"n": version + 1})), expected_version: version, call: None }
}

pub fn wait(claim: Claim, waits: Vec<Wait>) -> Command {
    Command::Wait { claim, waits }
}

pub fn claim_as(step: u8, worker_id: &str, version: &str, strict: bool) -> Command {
    Command::Claim {
        step: step_id(step),
        worker: name(worker_id),
        lease_ms: 30_000,
        package: package(version),
        strict,
    }
}
