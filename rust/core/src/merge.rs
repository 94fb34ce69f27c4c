//! RFC 7396 merge patches, exactly, and the difference of two states as such a patch.

use serde_json::{Map, Value};

use crate::error::{Code, Coded};

/// Why there is no patch from one state to another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    #[error("a null member cannot be set by a merge patch (at {0})")]
    Null(String),
    #[error("a state is a JSON object")]
    NotAnObject,
}

impl Coded for DiffError {
    fn code(&self) -> Code {
        match self {
            Self::Null(_) => Code::StateNull,
            Self::NotAnObject => Code::StateNotObject,
        }
    }
}

/// `target` after `patch`: members are merged, null deletes, anything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, member) in members {
            if member.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key.clone()).or_insert(Value::Null), member);
            }
        }
    }
}

/// The patch that leads from one state to another. A null member in `after` is refused: a merge patch
/// can only say null to delete.
pub fn diff(before: &Value, after: &Value) -> Result<Value, DiffError> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            diff_objects(before, after, &mut String::from("$")).map(Value::Object)
        }
        _ => Err(DiffError::NotAnObject),
    }
}

fn diff_objects(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    path: &mut String,
) -> Result<Map<String, Value>, DiffError> {
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, new) in after {
        let depth = path.len();
        crate::canonical::push_key(path, key);
        match (before.get(key), new) {
            (_, Value::Null) => return Err(DiffError::Null(path.clone())),
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                let inner = diff_objects(old, new, path)?;
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (_, Value::Object(new)) => {
                // An object in the place of something else: merged into nothing, it is itself.
                let whole = diff_objects(&Map::new(), new, path)?;
                patch.insert(key.clone(), Value::Object(whole));
            }
            (_, new) => {
                patch.insert(key.clone(), new.clone());
            }
        }
        path.truncate(depth);
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Appendix A of RFC 7396, whole.
    #[test]
    fn the_rfcs_own_table_holds() {
        let rows = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (mut target, patch, expected) in rows {
            let before = target.clone();
            merge(&mut target, &patch);
            assert_eq!(target, expected, "{before} with {patch}");
        }
    }

    #[test]
    fn a_null_member_has_no_patch_and_the_error_names_it() {
        let refused = diff(&json!({}), &json!({"a": {"b": null}}));
        assert_eq!(refused, Err(DiffError::Null("$.a.b".into())));
        assert_eq!(diff(&json!([]), &json!({})), Err(DiffError::NotAnObject));
    }
}
