//! The message of a panic.

use std::any::Any;

/// The message that a panic was raised with; `None` if its payload is no text.
pub fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str))
}
