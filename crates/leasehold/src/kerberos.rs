//! Kerberos of `serve` and `proxy`: the keytab, and the users that principals are.

use std::ffi::CString;
use std::sync::Arc;

use gss::Library;
use rpc::rpcsec_gss::{Acceptor, UnixUser};
use server::Sec;

use crate::cli::Kerberos;
use crate::{Failure, sys};

/// The service whose tickets clients have: its principal is `nfs/HOST@REALM` (RFC 7530, section 3.2.1.1).
const SERVICE: &str = "nfs";

/// Opens the keytab if an export accepts Kerberos.
///
/// # Errors
/// If there is no library, or no key that can be used. If there is a keytab that no export needs.
pub fn acceptor<'s>(
    kerberos: &Kerberos,
    mut exports: impl Iterator<Item = &'s Sec>,
) -> Result<Option<Arc<Acceptor>>, Failure> {
    if !exports.any(Sec::has_kerberos) {
        let useless = "a keytab is named, and no export accepts Kerberos; add --sec krb5:krb5i:krb5p";
        return if kerberos.keytab.is_some() { Err(Failure(useless.into())) } else { Ok(None) };
    }
    let unusable = |error: gss::Error| Failure(format!("cannot accept Kerberos: {error}"));
    let library = Library::open().map_err(unusable)?;
    let keys = gss::Acceptor::for_service(&library, SERVICE, kerberos.keytab.as_deref()).map_err(unusable)?;
    let acceptor = Acceptor::new(keys, Box::new(user)).map_err(|error| {
        Failure(format!("cannot accept Kerberos: the system has no random numbers: {error}"))
    })?;
    Ok(Some(acceptor))
}

/// Checks the flavors of an export that is read again.
///
/// # Errors
/// If it accepts Kerberos, and the process has opened no keytab.
pub fn check_again(acceptor: Option<&Arc<Acceptor>>, sec: &Sec) -> Result<(), Failure> {
    if sec.has_kerberos() && acceptor.is_none() {
        return Err(Failure(format!(
            "sec={sec} is the first that accepts Kerberos; restart to open the keytab"
        )));
    }
    Ok(())
}

/// The user with a name; none if there is no such user.
fn user(name: &str) -> std::io::Result<Option<UnixUser>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let Some((uid, gid)) = sys::user_named(&name)? else { return Ok(None) };
    let groups = sys::groups(&name, gid)?;
    Ok(Some(UnixUser { uid, gid, groups }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_name_is_that_of_the_machine() {
        let root = user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(user("no-such-user").unwrap(), None);
        assert_eq!(user("a\0b").unwrap(), None);
    }

    #[test]
    fn a_keytab_and_the_flavors_go_together() {
        let of = |keytab: Option<&str>, sec: &str| {
            let kerberos = Kerberos { keytab: keytab.map(Into::into) };
            let sec: Sec = sec.parse().unwrap();
            acceptor(&kerberos, std::iter::once(&sec))
                .map(|acceptor| acceptor.is_some())
                .map_err(|error| error.0)
        };
        assert_eq!(of(None, "sys:none"), Ok(false));
        assert!(of(Some("/k"), "sys").unwrap_err().contains("--sec krb5"));
        let missing = of(Some("/no/such/keytab"), "sys:krb5").unwrap_err();
        assert!(missing.starts_with("cannot accept Kerberos: ") && !missing.contains('\n'), "{missing}");
        assert!(check_again(None, &"krb5".parse().unwrap()).is_err());
        assert!(check_again(None, &Sec::default()).is_ok());
    }
}
