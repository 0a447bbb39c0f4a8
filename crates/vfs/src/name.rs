//! One component of a path: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.
//!
//! Fronts turn `.` and `..` into operations of their own before they build a [`Name`]. So no back end ever
//! leaves its export by a name.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Status};

/// A file name that every layer below the front may trust.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The longest component: `NAME_MAX` of Linux.
    pub const MAX: usize = 255;

    /// Parses a name from outside.
    ///
    /// # Errors
    /// `NameTooLong` beyond 255 bytes; `Inval` if empty, `.`, `..`, or with `/` or NUL in it.
    pub fn new(bytes: &[u8]) -> Result<Name, Error> {
        if bytes.len() > Name::MAX {
            return Err(Status::NameTooLong.into());
        }
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Status::Inval.into());
        }
        Ok(Name(bytes.into()))
    }

    /// The bytes of the name; no encoding is promised.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_walk_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad).unwrap_err().status, Status::Inval);
        }
        assert_eq!(Name::new(&[b'x'; 256]).unwrap_err().status, Status::NameTooLong);
        assert_eq!(Name::new(b"caf\xe9").unwrap().as_bytes(), b"caf\xe9");
    }
}
