//! Finds the contents in a fact: whatever is written as a [`Content`], wherever it stands. Nothing is
//! encoded on the way.

use std::fmt;

use serde::ser::{self, Serialize};

use super::common::{Media, Privacy};
use super::read::read;
use crate::content::{Commit, Content};

/// The contents of a value, in the order in which they are written.
pub(super) fn contents_of<T: Serialize + ?Sized>(value: &T) -> Vec<Content> {
    let mut found = Vec::new();
    // A finder refuses nothing.
    let _ = value.serialize(Finder(&mut found));
    found
}

#[derive(Debug)]
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it cannot be written")
    }
}

impl std::error::Error for Never {}

impl ser::Error for Never {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

type Done = Result<(), Never>;

struct Finder<'f>(&'f mut Vec<Content>);

/// A value with parts; of a content, the parts are taken.
struct Parts<'f> {
    found: &'f mut Vec<Content>,
    content: Option<Half>,
}

/// A content as its fields come.
#[derive(Default)]
struct Half {
    bytes: Option<u64>,
    commit: Option<Commit>,
    media: Option<Media>,
    privacy: Option<Privacy>,
}

impl Half {
    fn take<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        // The fields are few and small; a tree of each is the shortest way to its type.
        let Ok(tree) = serde_json::to_value(value) else { return };
        match key {
            "bytes" => self.bytes = tree.as_u64(),
            "commit" => self.commit = read(&tree).ok(),
            "media" => self.media = read(&tree).ok(),
            "privacy" => self.privacy = read(&tree).ok(),
            _ => {}
        }
    }

    fn whole(self) -> Option<Content> {
        let (bytes, commit, media, privacy) = (self.bytes?, self.commit?, self.media?, self.privacy?);
        Some(Content { bytes, commit, media, privacy })
    }
}

impl<'f> Finder<'f> {
    fn parts(self, content: bool) -> Parts<'f> {
        Parts { found: self.0, content: content.then(Half::default) }
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, _: $type) -> Done {
            Ok(())
        })*
    };
}

impl<'f> ser::Serializer for Finder<'f> {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Parts<'f>;
    type SerializeTuple = Parts<'f>;
    type SerializeTupleStruct = Parts<'f>;
    type SerializeTupleVariant = Parts<'f>;
    type SerializeMap = Parts<'f>;
    type SerializeStruct = Parts<'f>;
    type SerializeStructVariant = Parts<'f>;

    plain!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32,
        serialize_f64: f64, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str);

    fn serialize_none(self) -> Done {
        Ok(())
    }
    fn serialize_unit(self) -> Done {
        Ok(())
    }
    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Done {
        Ok(())
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Done {
        Ok(())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Done {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Done {
        value.serialize(self)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
    fn serialize_tuple(self, _: usize) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Parts<'f>, Never> {
        Ok(self.parts(name == "Content"))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'f>, Never> {
        Ok(self.parts(false))
    }
}

impl Parts<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(Finder(self.found))
    }
}

macro_rules! listed {
    ($($list:ident $method:ident),*) => {
        $(impl ser::$list for Parts<'_> {
            type Ok = ();
            type Error = Never;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                self.part(value)
            }
            fn end(self) -> Done {
                Ok(())
            }
        })*
    };
}
listed!(SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field);

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Never;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Done {
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        self.part(value)
    }
    fn end(self) -> Done {
        Ok(())
    }
}

impl ser::SerializeStruct for Parts<'_> {
    type Ok = ();
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Done {
        match &mut self.content {
            Some(half) => {
                half.take(key, value);
                Ok(())
            }
            None => self.part(value),
        }
    }
    fn end(self) -> Done {
        self.found.extend(self.content.and_then(Half::whole));
        Ok(())
    }
}

impl ser::SerializeStructVariant for Parts<'_> {
    type Ok = ();
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Done {
        self.part(value)
    }
    fn end(self) -> Done {
        Ok(())
    }
}
