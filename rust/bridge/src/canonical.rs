//! `holdfast.canonical`: bytes and digests of Python objects (walked in `walk.rs`), and Python
//! objects from JSON text.

use holdfast_core::canonical::{self, CanonicalError, Refusal, Sink};
use holdfast_core::error::Code;
use holdfast_core::limits;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::error::{Raise, refuse};
use crate::walk::{type_name, with_written};

/// Builds Python objects from pushed values.
struct Objects<'py> {
    py: Python<'py>,
    root: Option<Bound<'py, PyAny>>,
    open: Vec<Open<'py>>,
}

enum Open<'py> {
    Array(Bound<'py, PyList>),
    Object(Bound<'py, PyDict>, Option<Bound<'py, PyString>>),
}

/// Python could not make the object: out of memory is all that can happen here.
fn no_room<E>(_: E) -> Refusal {
    Refusal::TooLarge
}

impl<'py> Objects<'py> {
    fn put(&mut self, value: Bound<'py, PyAny>) -> Result<(), Refusal> {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::Array(items)) => items.append(value).map_err(no_room)?,
            Some(Open::Object(members, key)) => members.set_item(key.take(), value).map_err(no_room)?,
        }
        Ok(())
    }
}

impl Sink for Objects<'_> {
    fn null(&mut self) -> Result<(), Refusal> {
        self.put(self.py.None().into_bound(self.py))
    }
    fn boolean(&mut self, value: bool) -> Result<(), Refusal> {
        self.put(PyBool::new(self.py, value).to_owned().into_any())
    }
    fn int(&mut self, value: i64) -> Result<(), Refusal> {
        self.put(PyInt::new(self.py, value).into_any())
    }
    fn float(&mut self, value: f64) -> Result<(), Refusal> {
        self.put(PyFloat::new(self.py, value).into_any())
    }
    fn string(&mut self, value: &str) -> Result<(), Refusal> {
        self.put(PyString::new(self.py, value).into_any())
    }
    fn begin_array(&mut self) -> Result<(), Refusal> {
        self.open.push(Open::Array(PyList::empty(self.py)));
        Ok(())
    }
    fn begin_object(&mut self) -> Result<(), Refusal> {
        self.open.push(Open::Object(PyDict::new(self.py), None));
        Ok(())
    }
    fn key(&mut self, key: &str) -> Result<(), Refusal> {
        if let Some(Open::Object(members, next)) = self.open.last_mut() {
            let key = PyString::new(self.py, key);
            if members.contains(&key).map_err(no_room)? {
                return Err(Refusal::DuplicateKey);
            }
            *next = Some(key);
        }
        Ok(())
    }
    fn end(&mut self) -> Result<(), Refusal> {
        match self.open.pop() {
            Some(Open::Array(items)) => self.put(items.into_any()),
            Some(Open::Object(members, _)) => self.put(members.into_any()),
            None => Ok(()),
        }
    }
}

/// JSON text as Python objects.
pub(crate) fn objects<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut sink = Objects { py, root: None, open: Vec::new() };
    canonical::parse(text, &mut sink).map_err(|error| error.raise(py))?;
    Ok(sink.root.unwrap_or_else(|| py.None().into_bound(py)))
}

/// The bytes of a `str` or of `bytes`.
pub(crate) fn text_of<'a>(text: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let refused = |refusal| CanonicalError { refusal, path: "$".to_owned() }.raise(text.py());
    if text.len().unwrap_or(0) > limits::JSON_BYTES_MAX {
        return Err(refused(Refusal::TooLarge));
    }
    if let Ok(text) = text.cast::<PyString>() {
        return Ok(text.to_str().map_err(|_| refused(Refusal::LoneSurrogate))?.as_bytes());
    }
    match text.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => Err(refused(Refusal::NotJson(type_name(text)))),
    }
}

/// The canonical bytes of a value of exact JSON types.
#[pyfunction]
#[pyo3(name = "canonical_dumps", signature = (obj, /))]
fn dumps<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    with_written(obj, None, |writer| PyBytes::new(obj.py(), writer.bytes()))
}

/// `sha256:<hex>` over the domain's line and the value's canonical bytes.
#[pyfunction]
#[pyo3(name = "canonical_digest", signature = (obj, /, *, domain = "holdfast/value/v1"))]
fn digest<'py>(obj: &Bound<'py, PyAny>, domain: &str) -> PyResult<Bound<'py, PyString>> {
    let plain = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/');
    if domain.is_empty() || domain.len() > 64 || !domain.bytes().all(plain) {
        return Err(refuse(obj.py(), "CanonicalError", Code::BadDomain, "not a digest domain"));
    }
    let text = with_written(obj, Some(domain), canonical::digest_with)?;
    PyString::from_bytes(obj.py(), &text)
}

/// The canonical bytes of what JSON text says.
#[pyfunction]
#[pyo3(name = "canonical_text", signature = (text, /))]
fn dumps_text<'py>(text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = text.py();
    let bytes = canonical::canonical_text(text_of(text)?).map_err(|error| error.raise(py))?;
    Ok(PyBytes::new(py, &bytes))
}

/// JSON text, under the limits and refusals of canonical bytes.
#[pyfunction]
#[pyo3(name = "canonical_loads", signature = (text, /))]
fn loads<'py>(text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    objects(text.py(), text_of(text)?)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(dumps, m)?)?;
    m.add_function(wrap_pyfunction!(digest, m)?)?;
    m.add_function(wrap_pyfunction!(dumps_text, m)?)?;
    m.add_function(wrap_pyfunction!(loads, m)?)
}
