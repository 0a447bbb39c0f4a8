//! Names and credentials of the library. Both are immutable once made, and released by Drop.

use super::{
    Buffer, Functions, HOST_BASED_OID, Handle, KRB5_OID, KeyValue, KeyValueSet, Oid, OidSet, Output,
    PRINCIPAL_OID, TEXT_MAX,
};
use crate::error::{Error, is_failure};
use std::ffi::{CStr, CString, c_int};
use std::ptr;

/// `GSS_C_INDEFINITE`: as long as the mechanism permits.
const INDEFINITE: u32 = u32::MAX;

/// How the text of a name is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NameType {
    /// `service@host`, or `service` for each host.
    HostBased,
    /// `user@REALM` or `service/host@REALM`.
    Principal,
}

/// A name.
pub(crate) struct Name {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: a name is never changed after it was made, and no thread owns it.
unsafe impl Send for Name {}
// SAFETY: as above; the library only reads it in calls that get it as an input.
unsafe impl Sync for Name {}

impl Name {
    pub(crate) fn import(functions: &'static Functions, text: &str, kind: NameType) -> Result<Name, Error> {
        let oid = Oid::of(match kind {
            NameType::HostBased => HOST_BASED_OID,
            NameType::Principal => PRINCIPAL_OID,
        });
        let input = Buffer::input(text.as_bytes());
        let (mut minor, mut handle) = (0, ptr::null_mut());
        // SAFETY: all pointers are to locals that live through the call, and the library only reads the text.
        let major = unsafe {
            (functions.import_name)(&raw mut minor, &raw const input, &raw const oid, &raw mut handle)
        };
        let name = Name { functions, handle };
        functions.check(&format!("the name {text:?} cannot be used"), major, minor)?;
        Ok(name)
    }

    /// Takes over a name that the library returned.
    pub(super) fn owned(functions: &'static Functions, handle: Handle) -> Name {
        Name { functions, handle }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// The principal as text. Refuses a name that is not UTF-8: two of those must not become equal.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let what = "the principal cannot be shown";
        if self.handle.is_null() {
            return Err(Error::here("the library gave no principal"));
        }
        let mut minor = 0;
        let mut text = Output::new(self.functions);
        // SAFETY: the name is valid, and the pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.display_name)(&raw mut minor, self.handle, &raw mut text.buffer, ptr::null_mut())
        };
        self.functions.check(what, major, minor)?;
        let text = text.copy(TEXT_MAX).and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or_else(|| Error::here(&format!("{what}: it is not UTF-8, or is too long")))
    }

    /// The local user that the library's rules give the name. `None` if there is none.
    pub(crate) fn local(&self) -> Option<String> {
        let localname = self.functions.localname.filter(|_| !self.handle.is_null())?;
        let mechanism = Oid::of(KRB5_OID);
        let mut minor = 0;
        let mut text = Output::new(self.functions);
        // SAFETY: the name is valid, and the pointers are to locals that live through the call.
        let major =
            unsafe { localname(&raw mut minor, self.handle, &raw const mechanism, &raw mut text.buffer) };
        let text = text.copy(TEXT_MAX).filter(|_| !is_failure(major))?;
        String::from_utf8(text).ok().filter(|text| !text.is_empty())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the name came from this library and is released once.
            unsafe { (self.functions.release_name)(&raw mut minor, &raw mut self.handle) };
        }
    }
}

/// The side of a context for which a credential is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Usage {
    Initiate = 1,
    Accept = 2,
}

/// A credential for Kerberos alone.
pub(crate) struct Credential {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: no thread owns a credential.
unsafe impl Send for Credential {}
// SAFETY: MIT's library guards the parts of a credential that it changes (tickets, replay cache) by a mutex
// in the credential, and makes a new Kerberos context for each call.
unsafe impl Sync for Credential {}

impl Credential {
    /// Acquires a credential. Without a name it is the default one, or that of any key. `store` says where
    /// the keys and tickets are: pairs of a key (`keytab`, `ccache`, `client_keytab`) and its value.
    pub(crate) fn acquire(
        functions: &'static Functions,
        name: Option<&Name>,
        usage: Usage,
        store: &[(&CStr, CString)],
        what: &str,
    ) -> Result<Credential, Error> {
        let elements: Vec<KeyValue> =
            store.iter().map(|(key, value)| KeyValue { key: key.as_ptr(), value: value.as_ptr() }).collect();
        let set = KeyValueSet { count: elements.len() as u32, elements: elements.as_ptr() };
        let set = if elements.is_empty() { ptr::null() } else { &raw const set };
        let mut mechanism = Oid::of(KRB5_OID);
        let mechanisms = OidSet { count: 1, elements: &raw mut mechanism };
        let (mut minor, mut handle) = (0, ptr::null_mut());
        // SAFETY: the name is valid, all other pointers are to locals that live through the call, and the
        // library copies the strings that it keeps.
        let major = unsafe {
            (functions.acquire_cred_from)(
                &raw mut minor,
                name.map_or(ptr::null_mut(), Name::handle),
                INDEFINITE,
                &raw const mechanisms,
                usage as c_int,
                set,
                &raw mut handle,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let credential = Credential { functions, handle };
        functions.check(what, major, minor)?;
        Ok(credential)
    }

    /// The principal of the credential. Gets the first ticket from the KDC if the credential has a keytab.
    pub(crate) fn principal(&self, what: &str) -> Result<String, Error> {
        let (mut minor, mut name) = (0, ptr::null_mut());
        // SAFETY: the credential is valid, and the pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.inquire_cred)(
                &raw mut minor,
                self.handle,
                &raw mut name,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let name = Name::owned(self.functions, name);
        self.functions.check(what, major, minor)?;
        name.text()
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the credential came from this library and is released once.
            unsafe { (self.functions.release_cred)(&raw mut minor, &raw mut self.handle) };
        }
    }
}
