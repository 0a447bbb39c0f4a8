//! The keys of an established context, by the extension of MIT's library for that (gssapi_krb5.h).

use std::ffi::c_void;
use std::ptr;

use super::context::SecurityContext;
use super::{Buffer, Functions, Output, TOKEN_MAX};
use crate::cfx::{Key, Keys};
use crate::error::{Error, is_failure};

/// The version of the structure below.
const VERSION: u32 = 1;
/// `protocol` of a context whose tokens are those of RFC 4121.
const CFX: u32 = 1;
/// The longest key, in bytes.
const KEY_MAX: usize = 64;

/// `gss_krb5_lucid_key_t`
#[repr(C)]
struct LucidKey {
    encryption: u32,
    length: u32,
    data: *const c_void,
}

/// `gss_krb5_rfc1964_keydata_t`
#[repr(C)]
struct OldKeys {
    sign: u32,
    seal: u32,
    key: LucidKey,
}

/// `gss_krb5_cfx_keydata_t`
#[repr(C)]
struct CfxKeys {
    has_acceptor_key: u32,
    session: LucidKey,
    acceptor: LucidKey,
}

/// `gss_krb5_lucid_context_v1_t`
#[repr(C)]
struct Lucid {
    version: u32,
    is_initiator: u32,
    end: u32,
    send_sequence: u64,
    receive_sequence: u64,
    protocol: u32,
    old: OldKeys,
    cfx: CfxKeys,
}

impl SecurityContext {
    /// The keys of the established context, and a context of the library that is as before. The keys are
    /// `None` if the library has no such extension, or has other tokens than those of RFC 4121.
    ///
    /// # Errors
    /// If the library cannot copy the context.
    pub(crate) fn with_keys(mut self) -> Result<(SecurityContext, Option<Keys>), Error> {
        let Some((export, free)) = self.functions().lucid else { return Ok((self, None)) };
        let what = "cannot take the keys of the context";
        // To give the keys away, the library gives the context up. So a copy of it does.
        let copy = self.exported(what)?;
        let back = SecurityContext::imported(self.functions(), what, &copy)?;
        let mut given = SecurityContext::imported(self.functions(), what, &copy)?;
        let (mut minor, mut lucid) = (0, ptr::null_mut());
        // SAFETY: the context is established, and the library sets it to null if it gives it up; the other
        // pointers are to locals that live through the call.
        let major = unsafe { export(&raw mut minor, given.handle_mut(), VERSION, &raw mut lucid) };
        if is_failure(major) || lucid.is_null() {
            return Ok((back, None));
        }
        // SAFETY: the call has succeeded, so this is a structure of the version that was asked for.
        let keys = unsafe { keys_of(&*lucid.cast::<Lucid>()) };
        // SAFETY: the structure came from this library and is freed once. It is not used after this.
        unsafe { free(&raw mut minor, lucid) };
        Ok((back, keys))
    }

    /// The context as bytes. The context itself is gone.
    fn exported(&mut self, what: &str) -> Result<Vec<u8>, Error> {
        let functions = self.functions();
        let mut output = Output::new(functions);
        let mut minor = 0;
        // SAFETY: the context is established, and the library sets it to null; the other pointers are to
        // locals that live through the call.
        let major = unsafe {
            (functions.export_sec_context)(&raw mut minor, self.handle_mut(), &raw mut output.buffer)
        };
        functions.check(what, major, minor)?;
        output.copy(TOKEN_MAX).ok_or_else(|| Error::here(&format!("{what}: it is too long")))
    }

    fn imported(functions: &'static Functions, what: &str, bytes: &[u8]) -> Result<SecurityContext, Error> {
        let mut context = SecurityContext::new(functions);
        let input = Buffer::input(bytes);
        let mut minor = 0;
        // SAFETY: the library only reads the bytes; the context is null; the pointers are to locals that
        // live through the call.
        let major =
            unsafe { (functions.import_sec_context)(&raw mut minor, &raw const input, context.handle_mut()) };
        functions.check(what, major, minor)?;
        Ok(context)
    }
}

/// # Safety
/// The keys of the structure must have as many bytes as it says.
unsafe fn keys_of(lucid: &Lucid) -> Option<Keys> {
    if lucid.version != VERSION || lucid.protocol != CFX {
        return None;
    }
    // SAFETY: as the caller promises.
    let session = unsafe { key_of(&lucid.cfx.session) }?;
    let acceptor = if lucid.cfx.has_acceptor_key == 0 {
        None
    } else {
        // SAFETY: as the caller promises.
        Some(unsafe { key_of(&lucid.cfx.acceptor) }?)
    };
    let (is_initiator, sequence) = (lucid.is_initiator != 0, lucid.send_sequence);
    Some(Keys { is_initiator, session, acceptor, sequence })
}

/// # Safety
/// The key must have as many bytes as it says.
unsafe fn key_of(key: &LucidKey) -> Option<Key> {
    let length = key.length as usize;
    if key.data.is_null() || length > KEY_MAX {
        return None;
    }
    // SAFETY: as the caller promises; the bytes are copied at once.
    let bytes = unsafe { std::slice::from_raw_parts(key.data.cast::<u8>(), length) };
    Some(Key { encryption: key.encryption, bytes: bytes.to_vec() })
}
