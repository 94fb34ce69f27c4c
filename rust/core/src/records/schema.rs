//! JSON Schemas of every kind and contract, and reading a contract by its name.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::common::Budget;
use super::kinds;
use super::read::{Fault, ReadError, read};
use crate::canonical::to_value;
use crate::contracts::{approval, capability, hook, policy, source, tool};

macro_rules! contracts {
    ($($name:literal = $type:ty;)*) => {
        /// The contracts that are not records.
        pub fn contract_names() -> &'static [&'static str] {
            &[$($name),*]
        }

        fn contract_schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, schemars::Schema)> {
            vec![$(($name, generator.subschema_for::<$type>())),*]
        }

        /// Reads a contract and gives it back as it is written.
        pub fn read_contract(name: &str, value: &Value) -> Result<Value, ReadError> {
            match name {
                $($name => Ok(to_value(&read::<$type>(value)?)?),)*
                _ => Err(ReadError::new(Fault::UnknownKind, "$", "not the name of a contract")),
            }
        }
    };
}

contracts! {
    "approval_broker_outcome" = approval::ApprovalBrokerOutcome;
    "approval_request" = approval::ApprovalRequest;
    "budget" = Budget;
    "budget_account" = approval::BudgetAccount;
    "error_info" = tool::ErrorInfo;
    "grant" = capability::Grant;
    "hook_input" = hook::HookInput;
    "hook_response" = hook::HookResponse;
    "hook_spec" = hook::HookSpec;
    "policy" = policy::Policy;
    "source_approval_record" = source::SourceApprovalRecord;
    "source_decision" = source::SourceDecision;
    "tool_spec" = tool::ToolSpec;
}

/// `{"kinds": {kind: schema}, "contracts": {name: schema}, "$defs": {...}}`, draft 2020-12.
pub fn schemas() -> Value {
    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let plain = |list: Vec<(&'static str, schemars::Schema)>| {
        list.into_iter().map(|(name, schema)| (name.to_owned(), schema.to_value())).collect::<Map<_, _>>()
    };
    let kinds = plain(kinds::generate(&mut generator));
    let contracts = plain(contract_schemas(&mut generator));
    let definitions = generator.take_definitions(true);
    json!({"$defs": definitions, "contracts": contracts, "kinds": kinds})
}
