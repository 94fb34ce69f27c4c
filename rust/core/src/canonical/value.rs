//! Between JSON text, a tree of values and canonical bytes.

use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::error::{CanonicalError, Refusal};
use super::parse::{Sink, parse};
use super::writer::Writer;

/// Reads JSON text into a tree, under all limits.
pub fn from_text(text: &[u8]) -> Result<Value, CanonicalError> {
    let mut builder = Builder::default();
    parse(text, &mut builder)?;
    Ok(builder.root.unwrap_or(Value::Null))
}

/// A serde type as a tree; what has no canonical bytes has no tree either.
pub fn to_value<T: Serialize>(value: &T) -> Result<Value, CanonicalError> {
    from_text(&super::to_bytes(value)?)
}

/// Pushes a tree into a writer.
pub fn write_value(writer: &mut Writer, value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Null => writer.null(),
        Value::Bool(b) => writer.boolean(*b),
        Value::String(s) => writer.string(s),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => writer.int(i),
            (None, Some(x)) if n.is_f64() => writer.float(x),
            _ => Err(Refusal::IntegerTooLarge),
        },
        Value::Array(items) => {
            writer.begin_array()?;
            items.iter().try_for_each(|item| write_value(writer, item))?;
            writer.end()
        }
        Value::Object(members) => {
            writer.begin_object()?;
            for (key, member) in members {
                writer.key(key)?;
                write_value(writer, member)?;
            }
            writer.end()
        }
    }
}

/// Builds a tree from pushed values.
#[derive(Default)]
struct Builder {
    root: Option<Value>,
    open: Vec<Open>,
}

enum Open {
    Array(Vec<Value>),
    Object(Map<String, Value>, Option<String>),
}

impl Builder {
    fn put(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::Array(items)) => items.push(value),
            Some(Open::Object(members, key)) => {
                members.insert(key.take().unwrap_or_default(), value);
            }
        }
    }
}

impl Sink for Builder {
    fn null(&mut self) -> Result<(), Refusal> {
        self.put(Value::Null);
        Ok(())
    }
    fn boolean(&mut self, value: bool) -> Result<(), Refusal> {
        self.put(Value::Bool(value));
        Ok(())
    }
    fn int(&mut self, value: i64) -> Result<(), Refusal> {
        self.put(Value::Number(value.into()));
        Ok(())
    }
    fn float(&mut self, value: f64) -> Result<(), Refusal> {
        self.put(Value::Number(Number::from_f64(value).ok_or(Refusal::NotFinite)?));
        Ok(())
    }
    fn string(&mut self, value: &str) -> Result<(), Refusal> {
        self.put(Value::String(value.to_owned()));
        Ok(())
    }
    fn begin_array(&mut self) -> Result<(), Refusal> {
        self.open.push(Open::Array(Vec::new()));
        Ok(())
    }
    fn begin_object(&mut self) -> Result<(), Refusal> {
        self.open.push(Open::Object(Map::new(), None));
        Ok(())
    }
    fn key(&mut self, key: &str) -> Result<(), Refusal> {
        if let Some(Open::Object(members, next)) = self.open.last_mut() {
            if members.contains_key(key) {
                return Err(Refusal::DuplicateKey);
            }
            *next = Some(key.to_owned());
        }
        Ok(())
    }
    fn end(&mut self) -> Result<(), Refusal> {
        match self.open.pop() {
            Some(Open::Array(items)) => self.put(Value::Array(items)),
            Some(Open::Object(members, _)) => self.put(Value::Object(members)),
            None => {}
        }
        Ok(())
    }
}
