//! GSS-API (RFC 2743, RFC 2744) with Kerberos (RFC 4121), by the system's library.
//!
//! The library, MIT's `libgssapi_krb5.so.2`, is opened at run time. Neither headers nor Kerberos are needed
//! to build this crate, and a program that opens no [`Library`] runs without it.
//!
//! An [`Acceptor`] has the keys of a service, an [`Initiator`] the tickets of a user. They exchange tokens,
//! step by step, until both have a [`Context`], which signs and encrypts messages. The caller carries the
//! tokens.
//!
//! Assumptions: the library reads its configuration (KRB5_CONFIG, /etc/krb5.conf) itself. Calls can block: an
//! initiator asks the KDC, and the rules for local names may ask a directory. No context detects replayed or
//! reordered messages, because RPCSEC_GSS does that itself (RFC 2203, 5.3.3.1).

mod acceptor;
mod cfx;
mod context;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod initiator;
mod sys;

pub use acceptor::{Accepting, Acceptor};
pub use context::{Context, Step};
pub use error::Error;
pub use initiator::{Initiating, Initiator, Source};
pub use sys::KRB5_OID;

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The library. It stays in memory until the process ends. Cheap to clone.
#[derive(Clone, Copy)]
pub struct Library {
    functions: &'static sys::Functions,
}

impl Library {
    /// Opens the library. The error says what to install.
    pub fn open() -> Result<Library, Error> {
        sys::load().map(|functions| Library { functions })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Library")
    }
}

/// The name of a keytab for the library. Fails if this user cannot read the file.
fn keytab_name(path: &Path) -> Result<CString, Error> {
    let unusable = |cause: &dyn fmt::Display| {
        Error::here(&format!("keytab {}: {cause}; name a keytab that this user may read", path.display()))
    };
    let file = File::open(path).map_err(|error| unusable(&error))?;
    if !file.metadata().map_err(|error| unusable(&error))?.is_file() {
        return Err(unusable(&"not a regular file"));
    }
    let name = [b"FILE:", path.as_os_str().as_bytes()].concat();
    CString::new(name).map_err(|error| unusable(&error))
}

#[cfg(test)]
mod tests {
    use super::{Accepting, Acceptor, Context, Error, Initiating, Initiator, Library};

    #[test]
    fn threads_share_and_pass_on_what_they_may() {
        fn shared<T: Send + Sync + 'static>() {}
        fn sent<T: Send + 'static>() {}
        shared::<(Library, Acceptor, Initiator, Context, Error)>();
        sent::<(Accepting, Initiating)>();
    }
}
