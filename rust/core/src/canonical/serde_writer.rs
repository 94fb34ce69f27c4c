//! Serde types straight to canonical bytes. Declare a struct's fields in alphabetical order and
//! nothing is moved.

use serde::ser::{self, Impossible, Serialize};

use super::error::{CanonicalError, Refusal};
use super::writer::Writer;

/// The canonical bytes of a serde type.
pub fn to_bytes<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let mut writer = Writer::new();
    write_serde(&mut writer, value)?;
    Ok(writer.into_bytes())
}

/// Pushes a serde type into a writer.
pub fn write_serde<T: Serialize + ?Sized>(writer: &mut Writer, value: &T) -> Result<(), CanonicalError> {
    let done = value.serialize(Push(writer));
    done.map_err(|refused| CanonicalError { refusal: refused.0, path: writer.path() })
}

/// Serde's error slot; the refusal is all we put in it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(#[from] Refusal);

impl ser::Error for Refused {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self(Refusal::NotJson(message.to_string()))
    }
}

struct Push<'w>(&'w mut Writer);
struct Compound<'w>(&'w mut Writer);
type Done = Result<(), Refused>;

fn not_json<T>(what: &str) -> Result<T, Refused> {
    Err(Refused(Refusal::NotJson(what.to_owned())))
}

impl<'w> ser::Serializer for Push<'w> {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Compound<'w>;
    type SerializeTuple = Compound<'w>;
    type SerializeTupleStruct = Compound<'w>;
    type SerializeTupleVariant = Impossible<(), Refused>;
    type SerializeMap = Compound<'w>;
    type SerializeStruct = Compound<'w>;
    type SerializeStructVariant = Impossible<(), Refused>;

    fn serialize_bool(self, v: bool) -> Done {
        Ok(self.0.boolean(v)?)
    }
    fn serialize_i8(self, v: i8) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_i16(self, v: i16) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_i32(self, v: i32) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_i64(self, v: i64) -> Done {
        Ok(self.0.int(v)?)
    }
    fn serialize_u8(self, v: u8) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_u16(self, v: u16) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_u32(self, v: u32) -> Done {
        Ok(self.0.int(v.into())?)
    }
    fn serialize_u64(self, v: u64) -> Done {
        Ok(self.0.int(i64::try_from(v).map_err(|_| Refusal::IntegerTooLarge)?)?)
    }
    fn serialize_f32(self, v: f32) -> Done {
        Ok(self.0.float(v.into())?)
    }
    fn serialize_f64(self, v: f64) -> Done {
        Ok(self.0.float(v)?)
    }
    fn serialize_char(self, v: char) -> Done {
        Ok(self.0.string(v.encode_utf8(&mut [0; 4]))?)
    }
    fn serialize_str(self, v: &str) -> Done {
        Ok(self.0.string(v)?)
    }
    fn serialize_bytes(self, _: &[u8]) -> Done {
        not_json("bytes")
    }
    fn serialize_none(self) -> Done {
        Ok(self.0.null()?)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Done {
        Ok(self.0.null()?)
    }
    fn serialize_unit_struct(self, _: &'static str) -> Done {
        Ok(self.0.null()?)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Done {
        Ok(self.0.string(variant)?)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Done {
        self.0.begin_object()?;
        self.0.key(variant)?;
        value.serialize(Push(self.0))?;
        Ok(self.0.end()?)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'w>, Refused> {
        self.0.begin_array()?;
        Ok(Compound(self.0))
    }
    fn serialize_tuple(self, _: usize) -> Result<Compound<'w>, Refused> {
        self.serialize_seq(None)
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Compound<'w>, Refused> {
        self.serialize_seq(None)
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Refused> {
        not_json("tuple variant")
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'w>, Refused> {
        self.0.begin_object()?;
        Ok(Compound(self.0))
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Compound<'w>, Refused> {
        self.serialize_map(None)
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Refused> {
        not_json("struct variant")
    }
}

macro_rules! elements {
    ($($trait:ident $method:ident;)*) => {
        $(impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Refused;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                value.serialize(Push(self.0))
            }
            fn end(self) -> Done {
                Ok(self.0.end()?)
            }
        })*
    };
}

elements! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
}

/// Takes the key of a map: a text, or nothing that JSON can have there.
struct PushKey<'w>(&'w mut Writer);

fn not_a_key<T>() -> Result<T, Refused> {
    Err(Refused(Refusal::KeyNotString("map key".to_owned())))
}

macro_rules! no_keys {
    ($($method:ident: $type:ty;)*) => {
        $(fn $method(self, _: $type) -> Done {
            not_a_key()
        })*
    };
}

impl ser::Serializer for PushKey<'_> {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Impossible<(), Refused>;
    type SerializeTuple = Impossible<(), Refused>;
    type SerializeTupleStruct = Impossible<(), Refused>;
    type SerializeTupleVariant = Impossible<(), Refused>;
    type SerializeMap = Impossible<(), Refused>;
    type SerializeStruct = Impossible<(), Refused>;
    type SerializeStructVariant = Impossible<(), Refused>;

    fn serialize_str(self, v: &str) -> Done {
        Ok(self.0.key(v)?)
    }
    fn serialize_char(self, v: char) -> Done {
        Ok(self.0.key(v.encode_utf8(&mut [0; 4]))?)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Done {
        Ok(self.0.key(variant)?)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        value.serialize(self)
    }

    no_keys! {
        serialize_bool: bool;
        serialize_i8: i8;
        serialize_i16: i16;
        serialize_i32: i32;
        serialize_i64: i64;
        serialize_u8: u8;
        serialize_u16: u16;
        serialize_u32: u32;
        serialize_u64: u64;
        serialize_f32: f32;
        serialize_f64: f64;
        serialize_bytes: &[u8];
        serialize_unit_struct: &'static str;
    }
    fn serialize_none(self) -> Done {
        not_a_key()
    }
    fn serialize_unit(self) -> Done {
        not_a_key()
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Done {
        not_a_key()
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Refused> {
        not_a_key()
    }
    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Refused> {
        not_a_key()
    }
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Refused> {
        not_a_key()
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Refused> {
        not_a_key()
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Refused> {
        not_a_key()
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Refused> {
        not_a_key()
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Refused> {
        not_a_key()
    }
}

impl ser::SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Refused;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        key.serialize(PushKey(self.0))
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(Push(self.0))
    }
    fn end(self) -> Done {
        Ok(self.0.end()?)
    }
}

impl ser::SerializeStruct for Compound<'_> {
    type Ok = ();
    type Error = Refused;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Done {
        self.0.key(key)?;
        value.serialize(Push(self.0))
    }
    fn end(self) -> Done {
        Ok(self.0.end()?)
    }
}
