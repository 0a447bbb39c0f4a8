//! Maps an RPC credential to a `vfs::Caller`, with the squashing of exports(5).

use std::net::SocketAddr;

use rpc::Credential;
use vfs::{Caller, Freshness};

use crate::exports::{Export, ExportOptions, Squash};

/// The reason for refusing a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The client is not on the export's list, or its port is open to every user.
    Client,
    /// The export does not accept this flavor of authentication.
    Flavor,
}

/// The caller that a request runs as.
pub fn caller(
    export: &Export,
    peer: SocketAddr,
    credential: &Credential,
    resent: bool,
) -> Result<Caller, Denied> {
    let options = &**export.options();
    if !options.admits(peer) {
        return Err(Denied::Client);
    }
    let caller = match credential {
        Credential::None => Caller::unix(options.anonuid, options.anongid, &[]),
        Credential::Sys(sys) => squashed(options, sys.uid, sys.gid, &sys.gids),
        Credential::Other(_) => return Err(Denied::Flavor),
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
}
