//! The unsafe code of this crate: the C bindings of RFC 2744 to the library, which is loaded at run time.
//!
//! The layout is that of the C bindings on 64-bit Linux (x86_64, aarch64): a status has 32 bits, and handles
//! are pointers. The library never writes to its input buffers, with one exception: MIT's `gss_unwrap`
//! rotates the token in place. Every token is therefore passed as a copy. The library is never unloaded,
//! because it registers destructors of thread-specific data.
#![allow(unsafe_code, reason = "GSS-API is a C library")]

mod context;
mod lucid;
mod objects;

pub(crate) use context::{Outcome, SecurityContext};
pub(crate) use objects::{Credential, Name, NameType, Usage};

use crate::error::{Error, is_failure, is_unspecific};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// Name of the library: MIT's ABI, whose version 2 exists since 2001.
const LIBRARY: &str = "libgssapi_krb5.so.2";
/// The longest token that sets up a context, and the longest signature, in bytes.
pub(crate) const TOKEN_MAX: usize = 64 << 10;
/// The longest message to protect, in bytes. The library has lengths of 32 bits inside.
const MESSAGE_MAX: usize = 1 << 30;
/// The longest text (a name, an explanation of a status) that is taken from the library, in bytes.
const TEXT_MAX: usize = 8 << 10;

/// Kerberos 5, 1.2.840.113554.1.2.2 (RFC 4121), as the content bytes of its DER form.
pub const KRB5_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// `GSS_C_NT_HOSTBASED_SERVICE`, 1.2.840.113554.1.2.1.4.
const HOST_BASED_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04];
/// `GSS_KRB5_NT_PRINCIPAL_NAME`, 1.2.840.113554.1.2.2.1.
const PRINCIPAL_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02, 0x01];

/// `gss_OID_desc`.
#[repr(C)]
struct Oid {
    length: u32,
    elements: *mut c_void,
}

impl Oid {
    /// The library keeps no pointer to a descriptor that it gets, so a temporary one is enough.
    fn of(content: &'static [u8]) -> Oid {
        Oid { length: content.len() as u32, elements: content.as_ptr().cast_mut().cast() }
    }
}

/// `gss_OID_set_desc`.
#[repr(C)]
struct OidSet {
    count: usize,
    elements: *mut Oid,
}

/// `gss_buffer_desc`.
#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

impl Buffer {
    const EMPTY: Buffer = Buffer { length: 0, value: ptr::null_mut() };

    /// A buffer that the library only reads.
    fn input(bytes: &[u8]) -> Buffer {
        Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }

    /// A buffer in which the library may also write.
    fn in_place(bytes: &mut [u8]) -> Buffer {
        Buffer { length: bytes.len(), value: bytes.as_mut_ptr().cast() }
    }
}

/// `gss_key_value_element_desc`.
#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
struct KeyValueSet {
    count: u32,
    elements: *const KeyValue,
}

/// `gss_name_t`, `gss_cred_id_t`, `gss_ctx_id_t`: pointers to structures of the library.
type Handle = *mut c_void;

type ExportLucid = unsafe extern "C" fn(*mut u32, *mut Handle, u32, *mut *mut c_void) -> u32;
type FreeLucid = unsafe extern "C" fn(*mut u32, *mut c_void) -> u32;
type Localname = unsafe extern "C" fn(*mut u32, Handle, *const Oid, *mut Buffer) -> u32;

macro_rules! functions {
    ($($field:ident: $symbol:ident($($argument:ty),*);)*) => {
        /// The functions of the library that this crate calls.
        pub(crate) struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> u32,)*
            /// `gss_localname`, an extension.
            localname: Option<Localname>,
            /// `gss_krb5_export_lucid_sec_context` and `gss_krb5_free_lucid_sec_context`, extensions.
            lucid: Option<(ExportLucid, FreeLucid)>,
            /// Keeps the functions in memory.
            _library: libloading::Library,
        }

        impl Functions {
            fn resolve(library: libloading::Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the signatures are those of RFC 2744 and of MIT's gssapi_ext.h for a library with
                // this soname, and the library stays in the same structure as the pointers.
                unsafe {
                    Ok(Functions {
                        $($field: *library.get(concat!(stringify!($symbol), "\0").as_bytes())?,)*
                        localname: library.get(b"gss_localname\0").ok().map(|symbol| *symbol),
                        lucid: library
                            .get(b"gss_krb5_export_lucid_sec_context\0")
                            .ok()
                            .map(|symbol| *symbol)
                            .zip(library.get(b"gss_krb5_free_lucid_sec_context\0").ok().map(|symbol| *symbol)),
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    acquire_cred_from: gss_acquire_cred_from(*mut u32, Handle, u32, *const OidSet, c_int, *const KeyValueSet,
        *mut Handle, *mut *mut OidSet, *mut u32);
    accept_sec_context: gss_accept_sec_context(*mut u32, *mut Handle, Handle, *const Buffer, *const c_void,
        *mut Handle, *mut *mut Oid, *mut Buffer, *mut u32, *mut u32, *mut Handle);
    init_sec_context: gss_init_sec_context(*mut u32, Handle, *mut Handle, Handle, *const Oid, u32, u32,
        *const c_void, *const Buffer, *mut *mut Oid, *mut Buffer, *mut u32, *mut u32);
    inquire_context: gss_inquire_context(*mut u32, Handle, *mut Handle, *mut Handle, *mut u32, *mut *mut Oid,
        *mut u32, *mut c_int, *mut c_int);
    inquire_cred: gss_inquire_cred(*mut u32, Handle, *mut Handle, *mut u32, *mut c_int, *mut *mut OidSet);
    delete_sec_context: gss_delete_sec_context(*mut u32, *mut Handle, *mut Buffer);
    export_sec_context: gss_export_sec_context(*mut u32, *mut Handle, *mut Buffer);
    import_sec_context: gss_import_sec_context(*mut u32, *const Buffer, *mut Handle);
    get_mic: gss_get_mic(*mut u32, Handle, u32, *const Buffer, *mut Buffer);
    verify_mic: gss_verify_mic(*mut u32, Handle, *const Buffer, *const Buffer, *mut u32);
    wrap: gss_wrap(*mut u32, Handle, c_int, u32, *const Buffer, *mut c_int, *mut Buffer);
    unwrap: gss_unwrap(*mut u32, Handle, *const Buffer, *mut Buffer, *mut c_int, *mut u32);
    import_name: gss_import_name(*mut u32, *const Buffer, *const Oid, *mut Handle);
    display_name: gss_display_name(*mut u32, Handle, *mut Buffer, *mut *mut Oid);
    display_status: gss_display_status(*mut u32, u32, c_int, *const Oid, *mut u32, *mut Buffer);
    release_buffer: gss_release_buffer(*mut u32, *mut Buffer);
    release_name: gss_release_name(*mut u32, *mut Handle);
    release_cred: gss_release_cred(*mut u32, *mut Handle);
}

/// Loads the library at the first call. A later call after a failure tries again.
pub(crate) fn load() -> Result<&'static Functions, Error> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    match LOADED.get() {
        Some(functions) => Ok(functions),
        None => load_from(LIBRARY).map(|functions| LOADED.get_or_init(|| functions)),
    }
}

fn load_from(file: &str) -> Result<Functions, Error> {
    // SAFETY: a library of the system that is named by its soname. Its initializers have no preconditions.
    let library = unsafe { libloading::Library::new(file) };
    library.and_then(Functions::resolve).map_err(|error| {
        let cause = error.to_string();
        let cause = cause.strip_prefix(file).map_or(cause.as_str(), |rest| rest.trim_start_matches(": "));
        Error::here(&format!("cannot use {file}: {cause}; install it (Debian: apt install libgssapi-krb5-2)"))
    })
}

/// The kinds of status that `gss_display_status` explains.
#[derive(Clone, Copy)]
enum StatusKind {
    Major = 1,
    Minor = 2,
}

impl Functions {
    /// The result of a call with these status codes. `what` begins the message of an error. The thread must
    /// be the one of the call: the library keeps explanations of minor status codes by thread.
    fn check(&self, what: &str, major: u32, minor: u32) -> Result<(), Error> {
        if !is_failure(major) {
            return Ok(());
        }
        let mut cause = if minor == 0 { String::new() } else { self.explain(minor, StatusKind::Minor) };
        // The library's text of a minor status that has no cause.
        if cause == "Success" {
            cause.clear();
        }
        let mut parts = vec![what.to_owned()];
        if cause.is_empty() || !is_unspecific(major) {
            parts.push(self.explain(major, StatusKind::Major));
        }
        parts.push(cause);
        parts.retain(|part| !part.is_empty());
        Err(Error::new(&parts.join(": "), major, minor))
    }

    /// The library's text for a status code.
    fn explain(&self, status: u32, kind: StatusKind) -> String {
        let mechanism = Oid::of(KRB5_OID);
        let (mut minor, mut position) = (0, 0);
        let mut texts: Vec<String> = Vec::new();
        // A status has at most three texts: a calling error, a routine error, and information.
        for _ in 0..4 {
            let mut text = Output::new(self);
            // SAFETY: all pointers are to locals that live through the call; the text is released by its
            // Drop.
            let major = unsafe {
                (self.display_status)(
                    &raw mut minor,
                    status,
                    kind as c_int,
                    &raw const mechanism,
                    &raw mut position,
                    &raw mut text.buffer,
                )
            };
            let Some(bytes) = text.copy(TEXT_MAX).filter(|_| !is_failure(major)) else { break };
            texts.push(String::from_utf8_lossy(&bytes).trim().to_owned());
            if position == 0 {
                break;
            }
        }
        texts.join(", ")
    }
}

/// A buffer that the library fills. Dropping it releases the memory.
struct Output<'a> {
    functions: &'a Functions,
    buffer: Buffer,
}

impl Output<'_> {
    fn new(functions: &Functions) -> Output<'_> {
        Output { functions, buffer: Buffer::EMPTY }
    }

    /// A copy of the bytes. `None` if there are more than `limit`.
    fn copy(&self, limit: usize) -> Option<Vec<u8>> {
        if self.buffer.length == 0 {
            return Some(Vec::new());
        }
        if self.buffer.length > limit || self.buffer.value.is_null() {
            return None;
        }
        // SAFETY: the library allocated this many bytes, and they are released only by Drop.
        let bytes = unsafe { std::slice::from_raw_parts(self.buffer.value.cast::<u8>(), self.buffer.length) };
        Some(bytes.to_vec())
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or was allocated by this library, and it is released once.
        unsafe { (self.functions.release_buffer)(&raw mut minor, &raw mut self.buffer) };
    }
}

#[cfg(test)]
mod tests {
    use super::{KRB5_OID, Output, StatusKind, load, load_from};

    #[test]
    fn a_missing_library_is_told_in_one_line_with_the_way_out() {
        let error = load_from("libno-such-gssapi.so.2").err().expect("there is no such library").to_string();
        assert!(error.starts_with("cannot use libno-such-gssapi.so.2: cannot open shared object"), "{error}");
        assert!(error.ends_with("install it (Debian: apt install libgssapi-krb5-2)"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let error = load_from("libc.so.6").err().expect("it has no GSS-API").to_string();
        assert!(error.contains("gss_acquire_cred_from"), "{error}");
    }

    #[test]
    fn the_library_explains_a_status() {
        let functions = load().expect("the library is installed");
        let text = functions.explain(6 << 16, StatusKind::Major);
        assert!(text.contains("invalid Message Integrity Check"), "{text}");
        assert_eq!(KRB5_OID.len(), 9);
        assert_eq!(Output::new(functions).copy(0), Some(Vec::new()));
    }
}
