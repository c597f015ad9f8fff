//! The fields of a request: a JSON object whose fields are read, and refused, by name.
//!
//! As in the protocol, a field that is `null` counts as missing. Unknown fields are ignored: clients send many.

use axum::http::StatusCode;
use page_by_page::escape;
use page_by_page::model::sampling_params::narrow_to_f32;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::api_error::ApiError;

pub struct Fields(Map<String, Value>);

impl Fields {
    pub fn new(body: &[u8]) -> Result<Self, ApiError> {
        let refused = |problem: String| Err(ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), problem));
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => refused("the body is JSON, but not an object; send one, such as {\"prompt\": \"…\"}".into()),
            Err(error) => refused(format!("the body is not JSON: {}", escape::field(&error.to_string()))),
        }
    }

    /// A field, unless it is missing or `null`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A field, converted by `read`. `expected`: what it should be, for the error.
    pub fn take<T>(
        &self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::of_field(name, format!("{name} is {}, expected {expected}", short(value)));
        read(value).map(Some).ok_or_else(wrong)
    }

    pub fn read_as<T: DeserializeOwned>(&self, name: &'static str, expected: &str) -> Result<Option<T>, ApiError> {
        self.take(name, expected, |value| T::deserialize(value).ok())
    }

    /// True or false; missing is false.
    pub fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.read_as(name, "true or false")?.unwrap_or(false))
    }

    pub fn whole(&self, name: &'static str, least: u64, most: u64) -> Result<Option<usize>, ApiError> {
        let expected = match most {
            u64::MAX => format!("a whole number, {least} or more"),
            most => format!("a whole number from {least} to {most}"),
        };
        self.take(name, &expected, |value| {
            // Also written as 3.0.
            let as_float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64);
            let number = value.as_u64().or_else(as_float)?;
            (least..=most).contains(&number).then(|| usize::try_from(number).unwrap_or(usize::MAX))
        })
    }

    pub fn number(&self, name: &'static str) -> Result<Option<f32>, ApiError> {
        self.take(name, "a number that 32 bits can hold", |value| narrow_to_f32(value.as_f64()?).ok())
    }

    /// Refuses a field that asks for something unsupported. `is_harmless`: values that ask for nothing.
    pub fn refuse(&self, name: &'static str, is_harmless: impl FnOnce(&Value) -> bool) -> Result<(), ApiError> {
        let Some(value) = self.get(name).filter(|value| !is_harmless(value)) else { return Ok(()) };
        let message = format!("{name} is {}, which this server does not do; leave it out", short(value));
        Err(ApiError::of_field(name, message))
    }
}

/// A value, shortened for a message.
fn short(value: &Value) -> String {
    escape::field(&value.to_string())
}
