//! Maps an RPC credential to a `vfs::Caller`, with the squashing of exports(5).

use std::net::SocketAddr;

use rpc::{Credential, TransportSecurity};
use vfs::{Caller, Freshness};

use crate::exports::{Export, ExportOptions, Flavor, Squash};

/// The reason for refusing a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The client is not on the export's list, or its port is open to every user.
    Client,
    /// The export wants TLS, or a certificate of the client.
    Security,
    /// The export does not accept this flavor of authentication.
    Flavor,
}

/// The parts of a call that decide who calls.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'c> {
    /// The address and port.
    pub peer: SocketAddr,
    /// The security of the connection.
    pub security: TransportSecurity,
    /// The user, proven or not.
    pub credential: &'c Credential,
    /// The groups that were looked up for the user. Those of the credential then do not count.
    pub groups: Option<&'c [u32]>,
    /// The call is of MOUNT or the lock manager, or describes the root of an export over version 2 or 3. On
    /// every mount clients make such calls as AUTH_SYS or without a user. They are taken whatever `sec` says,
    /// as by the kernel's server.
    pub any_flavor: bool,
}

/// The caller that a request runs as.
pub fn caller(export: &Export, identity: Identity<'_>, resent: bool) -> Result<Caller, Denied> {
    let options = &**export.options();
    let Identity { peer, security, credential, groups, any_flavor } = identity;
    if !options.xprtsec.allows(security) {
        return Err(Denied::Security);
    }
    if !options.shows(peer.ip(), security) {
        return Err(Denied::Client);
    }
    // Before the port: a client learns that another flavor would do.
    let accepted = |flavor: &Flavor| any_flavor || options.sec.allows(*flavor);
    let flavor = Flavor::of(credential).filter(accepted).ok_or(Denied::Flavor)?;
    if !(flavor.is_kerberos() || options.accepts_port(peer)) {
        return Err(Denied::Client);
    }
    let caller = match credential {
        Credential::None => Caller::unix(options.anonuid, options.anongid, &[]),
        Credential::Sys(sys) => match groups {
            // The groups of this machine's root are not those of the anonymous user.
            Some(_) if sys.uid == 0 && options.squash == Squash::Root => squashed(options, 0, sys.gid, &[]),
            _ => squashed(options, sys.uid, sys.gid, groups.unwrap_or(&sys.gids)),
        },
        Credential::Proven(proven) => match (&proven.user.unix, groups) {
            (None, _) => Caller::unix(options.anonuid, options.anongid, &[]),
            (Some(user), Some(_)) if user.uid == 0 && options.squash == Squash::Root => {
                squashed(options, 0, user.gid, &[])
            }
            (Some(user), _) => squashed(options, user.uid, user.gid, groups.unwrap_or(&user.groups)),
        },
        Credential::Gss(_) | Credential::Tls | Credential::Other(_) => return Err(Denied::Flavor),
    };
    Ok(Caller { client: Some(peer.ip().to_canonical()), freshness: Freshness::Open, resent, ..caller })
}

fn squashed(options: &ExportOptions, uid: u32, gid: u32, groups: &[u32]) -> Caller {
    let anonymous_group = |group: u32| if group == 0 { options.anongid } else { group };
    match options.squash {
        Squash::None => Caller::unix(uid, gid, groups),
        Squash::All => Caller::unix(options.anonuid, options.anongid, &[]),
        Squash::Root => {
            let uid = if uid == 0 { options.anonuid } else { uid };
            let groups: Vec<u32> = groups.iter().map(|group| anonymous_group(*group)).collect();
            Caller::unix(uid, anonymous_group(gid), &groups)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::exports::ExportId;
    use vfs::{Credential as Unix, Principal};

    fn of(options: &ExportOptions, uid: u32, gid: u32, groups: &[u32]) -> Unix {
        match squashed(options, uid, gid, groups).principal {
            Principal::Unix(credential) => Unix::clone(&credential),
            Principal::Machine => panic!("a user"),
        }
    }

    #[test]
    fn squashing_is_that_of_exports5() {
        let mut options = ExportOptions { anonuid: 99, anongid: 98, ..ExportOptions::default() };
        assert_eq!(of(&options, 0, 0, &[0, 7]), Unix { uid: 99, gid: 98, groups: vec![98, 7] });
        assert_eq!(of(&options, 5, 6, &[7]), Unix { uid: 5, gid: 6, groups: vec![7] });
        options.squash = Squash::None;
        assert_eq!(of(&options, 0, 0, &[0]), Unix { uid: 0, gid: 0, groups: vec![0] });
        options.squash = Squash::All;
        assert_eq!(of(&options, 5, 6, &[7]), Unix { uid: 99, gid: 98, groups: vec![] });
    }

    #[test]
    fn looked_up_groups_replace_those_of_the_credential_and_are_squashed_too() {
        let groups_of = |squash, uid, looked_up: Option<&[u32]>| {
            let options = ExportOptions { secure: false, squash, ..ExportOptions::default() };
            let fs = Arc::new(memory::Memory::new(memory::Options::default()));
            let export = Export::new(ExportId::of("x"), "/x".to_owned(), fs, options);
            let gids = xdr::List::new(vec![7]).unwrap();
            let sys = Credential::Sys(rpc::AuthSys { uid, gid: 6, gids, ..rpc::AuthSys::default() });
            let peer = SocketAddr::from(([127, 0, 0, 1], 1000));
            let security = TransportSecurity::None;
            let (credential, groups) = (&sys, looked_up);
            let identity = Identity { peer, security, credential, groups, any_flavor: false };
            match caller(&export, identity, false).unwrap().principal {
                Principal::Unix(credential) => (credential.uid, credential.gid, credential.groups.clone()),
                Principal::Machine => panic!("a user"),
            }
        };
        assert_eq!(groups_of(Squash::Root, 5, None), (5, 6, vec![7]));
        assert_eq!(groups_of(Squash::Root, 5, Some(&[8, 0])), (5, 6, vec![8, 65534]));
        assert_eq!(groups_of(Squash::Root, 5, Some(&[])), (5, 6, vec![]));
        assert_eq!(groups_of(Squash::Root, 0, Some(&[0, 8])), (65534, 6, vec![]), "not those of our root");
        assert_eq!(groups_of(Squash::None, 0, Some(&[0, 8])), (0, 6, vec![0, 8]));
        assert_eq!(groups_of(Squash::All, 5, Some(&[8])), (65534, 65534, vec![]));
    }
}
