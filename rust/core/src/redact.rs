//! What a rule wants nobody on the way to see: a marker stands in the place of a value, and whoever puts
//! other arguments in the place of those it was shown gets the value back where it left the marker.
//!
//! A field is a dotted path into the arguments, as conditions have them; in a list it is meant in each item.
//! A marker names its place, so that none is ever taken for another's, also when a list was changed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::records::Name;

/// How every marker begins.
const MARK: &str = "[redacted ";

/// The fields without repetitions, and without what is inside of another.
pub fn fields<'a>(wanted: impl Iterator<Item = &'a Name>) -> Vec<Name> {
    let mut sorted: Vec<&Name> = wanted.collect();
    sorted.sort();
    let mut kept: Vec<Name> = Vec::new();
    for field in sorted {
        if !covered(&kept, field) {
            kept.push(field.clone());
        }
    }
    kept
}

/// Whether a field, or what it is inside of, is among these.
pub fn covered(fields: &[Name], field: &Name) -> bool {
    let inside = |outer: &Name| {
        let rest = field.as_str().strip_prefix(outer.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    fields.iter().any(inside)
}

/// A value as it is shown.
pub fn redacted(value: &Value, fields: &[Name]) -> Value {
    let mut shown = value.clone();
    for field in fields {
        walk(&mut shown, &parts(field), "", &mut |found, at| *found = Value::String(marker(at)));
    }
    shown
}

/// What was made of a shown value, with what stands behind the markers; none if a marker is in a place where
/// it stands for nothing.
pub fn restored(mut made: Value, real: &Value, fields: &[Name]) -> Option<Value> {
    let mut behind = BTreeMap::new();
    let mut real = real.clone();
    let mut fits = true;
    for field in fields {
        walk(&mut real, &parts(field), "", &mut |found, at| {
            behind.insert(marker(at), found.clone());
        });
        walk(&mut made, &parts(field), "", &mut |found, _| match found.as_str() {
            Some(text) if text.starts_with(MARK) => match behind.get(text) {
                Some(value) => *found = value.clone(),
                None => fits = false,
            },
            _ => {}
        });
    }
    fits.then_some(made)
}

fn marker(at: &str) -> String {
    format!("{MARK}{at}]")
}

fn parts(field: &Name) -> Vec<&str> {
    field.as_str().split('.').collect()
}

/// Visits every value that a path leads to.
fn walk(value: &mut Value, parts: &[&str], at: &str, visit: &mut dyn FnMut(&mut Value, &str)) {
    let inner = |part: &str| if at.is_empty() { part.to_owned() } else { format!("{at}.{part}") };
    match (parts.split_first(), value) {
        (None, value) => visit(value, at),
        (Some(_), Value::Array(items)) => {
            for (n, item) in items.iter_mut().enumerate() {
                walk(item, parts, &inner(&n.to_string()), visit);
            }
        }
        (Some((first, rest)), Value::Object(members)) => {
            if let Some(member) = members.get_mut(*first) {
                walk(member, rest, &inner(first), visit);
            }
        }
        (Some(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(texts: &[&str]) -> Vec<Name> {
        texts.iter().map(|text| Name::new(*text).unwrap()).collect()
    }

    #[test]
    fn what_is_shown_has_markers_and_what_is_made_of_it_has_the_values_again() {
        let hidden = names(&["card", "to.email", "items.code", "absent"]);
        let real = json!({
            "card": {"number": 4242}, "cents": 5, "items": [{"code": "a"}, {"code": "b"}], "to": {"email": "x@y"}
        });
        let shown = redacted(&real, &hidden);
        assert_eq!(
            shown,
            json!({
                "card": "[redacted card]",
                "cents": 5,
                "items": [{"code": "[redacted items.0.code]"}, {"code": "[redacted items.1.code]"}],
                "to": {"email": "[redacted to.email]"},
            })
        );
        assert_eq!(restored(shown, &real, &hidden), Some(real));
    }

    #[test]
    fn a_marker_is_never_taken_for_another() {
        let hidden = names(&["items.code"]);
        let real = json!({"items": [{"code": "a"}, {"code": "b"}]});
        let fewer = json!({"items": [{"code": "[redacted items.1.code]"}]});
        assert_eq!(restored(fewer, &real, &hidden), Some(json!({"items": [{"code": "b"}]})));
        let unknown = json!({"items": [{"code": "[redacted items.7.code]"}]});
        assert_eq!(restored(unknown, &real, &hidden), None);
        // Where nothing was hidden it is a text like any other, and brings nothing to light.
        let moved = json!({"items": [], "note": "[redacted items.0.code]"});
        assert_eq!(restored(moved.clone(), &real, &hidden), Some(moved));
        let other = json!({"items": [{"code": "c"}]});
        assert_eq!(restored(other.clone(), &real, &hidden), Some(other));
    }

    #[test]
    fn a_field_inside_of_another_adds_nothing() {
        let wanted = names(&["to.email", "to", "card", "token", "card"]);
        assert_eq!(fields(wanted.iter()), names(&["card", "to", "token"]));
        assert!(covered(&names(&["to"]), &names(&["to.email"])[0]));
        assert!(!covered(&names(&["to.email"]), &names(&["to"])[0]));
    }
}
