//! JSON Schemas of tools that come from elsewhere. What does not fit is told by its place and the word of the
//! schema that it does not satisfy, never by its value. References to other documents are not followed.

use jsonschema::Validator;
use serde_json::Value;

use crate::error::{Code, Coded};

/// The schema is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is no JSON Schema, or refers to another document")]
pub struct BadSchema;

impl Coded for BadSchema {
    fn code(&self) -> Code {
        Code::BadSchema
    }
}

/// Where a value does not fit, and which word of the schema says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    pub keyword: String,
    pub path: String,
}

/// A schema that values are checked against.
#[derive(Debug)]
pub struct Schema(Validator);

impl Schema {
    pub fn new(schema: &Value) -> Result<Self, BadSchema> {
        jsonschema::validator_for(schema).map(Self).map_err(|_| BadSchema)
    }

    /// The first part that does not fit.
    pub fn check(&self, value: &Value) -> Option<Unfit> {
        let error = self.0.iter_errors(value).next()?;
        let place = error.instance_path().to_string();
        let keyword = error.schema_path().to_string();
        let keyword = keyword.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Unfit { keyword, path: format!("${}", place.replace('/', ".")) })
    }
}
