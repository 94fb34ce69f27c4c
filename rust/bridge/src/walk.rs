//! Python objects straight to canonical bytes in one pass: the hot primitive. It is one of
//! our two files with `unsafe` (the other: the store's `locks.rs`): the safe walk spent a quarter of its time on reference counts and length
//! checks that the GIL makes needless.
//!
//! Safety argument, for the whole file:
//! - The GIL is held from entry to exit (`with_written` takes a `Bound`), and nothing called here
//!   runs Python code: the types are exact, so no `__eq__`, `__hash__` or `__len__` of a user runs, and
//!   the collector, which runs users' finalizers, is off during the walk ([`NoCollection`]): a string with
//!   a lone surrogate makes Python create an exception, and any creation may start it. So containers do
//!   not change while they are walked, and every borrowed pointer is kept alive by the container that
//!   gave it, up to the caller's own reference to the root. Errors are raised after the walk has ended.
//! - UTF-8 pointers live in their string object, which is alive as above.
//! - Recursion is bounded: the writer refuses a 65th level.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::{ptr, slice, str};

use holdfast_core::canonical::{CanonicalError, Refusal, Writer, key_order, key_rank, push_index, push_key};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::Raise;

/// What a thread keeps from one walk to the next.
#[derive(Default)]
struct Walker {
    writer: Writer,
    /// Members of the dicts that are open, innermost last, sorted before they are written.
    members: Vec<Member>,
    /// Where a refused value stands, innermost step first; filled while the walk unwinds.
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
struct Member {
    rank: u64,
    key: &'static str,
    value: *mut ffi::PyObject,
}

enum Step {
    Key(String),
    Index(usize),
}

thread_local! {
    static WALKER: RefCell<Walker> = RefCell::new(Walker::default());
}

/// Writes `value` (after its domain's line) and gives the writer to `done`.
pub(crate) fn with_written<T>(
    value: &Bound<'_, PyAny>,
    domain: Option<&str>,
    done: impl FnOnce(&Writer) -> T,
) -> PyResult<T> {
    let walked = WALKER.with_borrow_mut(|walker| {
        walker.writer.reset(domain);
        walker.members.clear();
        walker.members.shrink_to(4096);
        let written = {
            let _off = NoCollection::begin();
            walker.value(value.as_ptr())
        };
        match written {
            Ok(()) => Ok(done(&walker.writer)),
            Err(refusal) => Err(CanonicalError { refusal, path: walker.path() }),
        }
    });
    walked.map_err(|error| error.raise(value.py()))
}

/// Keeps Python's collector off while it lives, if it was on.
struct NoCollection {
    was_on: bool,
}

impl NoCollection {
    fn begin() -> Self {
        // SAFETY: the GIL is held by the caller.
        Self { was_on: unsafe { ffi::PyGC_Disable() } != 0 }
    }
}

impl Drop for NoCollection {
    fn drop(&mut self) {
        if self.was_on {
            // SAFETY: the GIL is still held: the guard does not outlive the walk.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// The qualified name of a value's type.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().qualname().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

impl Walker {
    fn path(&mut self) -> String {
        let mut path = String::from("$");
        for step in self.steps.drain(..).rev() {
            match step {
                Step::Key(key) => push_key(&mut path, &key),
                Step::Index(index) => push_index(&mut path, index),
            }
        }
        path
    }

    fn value(&mut self, value: *mut ffi::PyObject) -> Result<(), Refusal> {
        // SAFETY: `value` is alive; exact types were checked before their own functions are called.
        unsafe {
            let kind = ffi::Py_TYPE(value);
            if kind == &raw mut ffi::PyUnicode_Type {
                self.writer.string(utf8(value)?)
            } else if kind == &raw mut ffi::PyDict_Type {
                self.dict(value)
            } else if kind == &raw mut ffi::PyLong_Type {
                self.writer.int(integer(value)?)
            } else if kind == &raw mut ffi::PyList_Type {
                self.array(ffi::PyList_Size(value), |at| ffi::PyList_GetItem(value, at))
            } else if kind == &raw mut ffi::PyBool_Type {
                self.writer.boolean(value == ffi::Py_True())
            } else if value == ffi::Py_None() {
                self.writer.null()
            } else if kind == &raw mut ffi::PyFloat_Type {
                self.writer.float(ffi::PyFloat_AsDouble(value))
            } else if kind == &raw mut ffi::PyTuple_Type {
                self.array(ffi::PyTuple_Size(value), |at| ffi::PyTuple_GetItem(value, at))
            } else {
                Err(Refusal::NotJson(type_of(value)))
            }
        }
    }

    fn array(
        &mut self,
        len: ffi::Py_ssize_t,
        item: impl Fn(ffi::Py_ssize_t) -> *mut ffi::PyObject,
    ) -> Result<(), Refusal> {
        self.writer.begin_array()?;
        for at in 0..len {
            if let Err(refusal) = self.value(item(at)) {
                self.steps.push(Step::Index(usize::try_from(at).unwrap_or(0)));
                return Err(refusal);
            }
        }
        self.writer.end()
    }

    fn dict(&mut self, dict: *mut ffi::PyObject) -> Result<(), Refusal> {
        self.writer.begin_object()?;
        let first = self.members.len();
        self.gather(dict)?;
        let members = &mut self.members[first..];
        if !members.is_sorted_by_key(|member| member.rank)
            || members.windows(2).any(|m| m[0].rank == m[1].rank)
        {
            members.sort_unstable_by(|a, b| {
                a.rank.cmp(&b.rank).then_with(|| key_order(a.key.as_bytes(), b.key.as_bytes()))
            });
        }
        for at in first..self.members.len() {
            let member = self.members[at];
            let written = self.writer.key_in_order(member.key).and_then(|()| self.value(member.value));
            if let Err(refusal) = written {
                self.steps.push(Step::Key(member.key.to_owned()));
                return Err(refusal);
            }
        }
        self.members.truncate(first);
        self.writer.end()
    }

    /// Puts the members of a dict on the stack, in its own order.
    fn gather(&mut self, dict: *mut ffi::PyObject) -> Result<(), Refusal> {
        let mut position: ffi::Py_ssize_t = 0;
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `dict` is an exact dict that nobody changes; what it hands out is borrowed from it.
        unsafe {
            while ffi::PyDict_Next(dict, &raw mut position, &raw mut key, &raw mut value) != 0 {
                if ffi::Py_TYPE(key) != &raw mut ffi::PyUnicode_Type {
                    return Err(Refusal::KeyNotString(type_of(key)));
                }
                let key = utf8(key)?;
                self.members.push(Member { rank: key_rank(key.as_bytes()), key, value });
            }
        }
        Ok(())
    }
}

/// The text of an exact `str`. The lifetime is the object's, which the caller keeps alive.
///
/// # Safety
/// `text` is an exact `str` that outlives the walk.
unsafe fn utf8(text: *mut ffi::PyObject) -> Result<&'static str, Refusal> {
    let mut len: ffi::Py_ssize_t = 0;
    // SAFETY: by the contract above; Python gives valid UTF-8 of that length, or null and an error.
    unsafe {
        let bytes = ffi::PyUnicode_AsUTF8AndSize(text, &raw mut len);
        if bytes.is_null() {
            let surrogate = ffi::PyErr_ExceptionMatches(ffi::PyExc_UnicodeEncodeError) != 0;
            ffi::PyErr_Clear();
            return Err(if surrogate { Refusal::LoneSurrogate } else { Refusal::TooLarge });
        }
        let len = usize::try_from(len).unwrap_or(0);
        Ok(str::from_utf8_unchecked(slice::from_raw_parts(bytes.cast::<u8>(), len)))
    }
}

/// The value of an exact `int`.
///
/// # Safety
/// `number` is an exact `int`.
unsafe fn integer(number: *mut ffi::PyObject) -> Result<i64, Refusal> {
    let mut overflow: c_int = 0;
    // SAFETY: by the contract above; an exact int never fails otherwise than by overflow.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(number, &raw mut overflow) };
    if overflow == 0 { Ok(value) } else { Err(Refusal::IntegerTooLarge) }
}

/// The name of a live object's type.
fn type_of(value: *mut ffi::PyObject) -> String {
    // SAFETY: the GIL is held and the object is alive.
    unsafe {
        let py = Python::assume_attached();
        type_name(&Bound::from_borrowed_ptr(py, value))
    }
}
