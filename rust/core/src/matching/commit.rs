//! A replayed commit against the recorded one.

use serde_json::{Map, Value};

/// What a replayed commit holds beyond the recorded patch; it stays pending for the next commit. `None`:
/// a recorded member is missing or has another value, so the code does something else than it did.
pub fn commit_rest(recorded: &Value, attempted: &Value) -> Option<Value> {
    let (Value::Object(recorded), Value::Object(attempted)) = (recorded, attempted) else { return None };
    let mut rest = Map::new();
    if recorded.keys().any(|key| !attempted.contains_key(key)) {
        return None;
    }
    for (key, now) in attempted {
        match (recorded.get(key), now) {
            (None, now) => {
                rest.insert(key.clone(), now.clone());
            }
            (Some(then), now) if then == now => {}
            (Some(then @ Value::Object(_)), now @ Value::Object(_)) => {
                rest.insert(key.clone(), commit_rest(then, now)?);
            }
            (Some(_), _) => return None,
        }
    }
    Some(Value::Object(rest))
}

#[cfg(test)]
mod tests {
    use super::commit_rest;
    use serde_json::{Value, json};

    #[test]
    fn a_replayed_commit_holds_at_least_what_was_recorded() {
        let rows: [(Value, Value, Option<Value>); 7] = [
            (json!({"a": 1}), json!({"a": 1}), Some(json!({}))),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), Some(json!({"b": 2}))),
            (json!({"a": 1}), json!({"a": 2}), None),
            (json!({"a": 1}), json!({}), None),
            (json!({"a": {"x": 1}}), json!({"a": {"x": 1, "y": 2}}), Some(json!({"a": {"y": 2}}))),
            (json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), None),
            (json!({"a": null}), json!({"a": 1}), None),
        ];
        for (recorded, attempted, rest) in rows {
            assert_eq!(commit_rest(&recorded, &attempted), rest, "{recorded} then {attempted}");
        }
    }
}
