//! Fields of JSON as they are read of a request: what is wrong is a refusal that names the field.

use super::Refusal;
use crate::value::Value;
use alloc::format;
use alloc::string::String;

pub(super) type Read<T> = core::result::Result<T, Refusal>;

/// A value of a request, and how its place is called.
#[derive(Clone, Copy)]
pub(super) struct Field<'v, 'p> {
    pub(super) value: &'v Value,
    pub(super) place: &'p str,
}

impl<'v> Field<'v, '_> {
    pub(super) fn refuse(self, what: &str) -> Refusal {
        // The field of the body, which clients show.
        let param = self.place.split(&['.', '['][..]).next().unwrap_or(self.place);
        Refusal::new(format!("`{}` {}", self.place, what)).param(param)
    }

    pub(super) fn str(self) -> Read<&'v str> {
        self.value.as_str().ok_or_else(|| self.refuse("has to be a text"))
    }

    pub(super) fn array(self) -> Read<&'v [Value]> {
        self.value.as_array().ok_or_else(|| self.refuse("has to be a list"))
    }

    /// The member, unless there is none or it is null.
    pub(super) fn get(self, name: &str) -> Option<&'v Value> {
        self.value.get(name).filter(|value| **value != Value::Nil)
    }

    /// A text of the member, or none.
    pub(super) fn text(self, name: &str) -> Read<Option<&'v str>> {
        match self.get(name) {
            Some(value) => Field { value, place: &self.member(name) }.str().map(Some),
            None => Ok(None),
        }
    }

    /// A text that the member has to be.
    pub(super) fn need(self, name: &str) -> Read<&'v str> {
        self.text(name)?.ok_or_else(|| self.refuse(&format!("needs a `{}`", name)))
    }

    pub(super) fn member(self, name: &str) -> String {
        format!("{}.{}", self.place, name)
    }
}
