//! Where an export is that the server refers us elsewhere for (RFC 8881, section 11.4).
//!
//! A referral is not followed: what is cached, and what is held at an origin, belongs to the server that was named. Whoever
//! runs us is told the URL of the other one.

use std::sync::Arc;

use protocol::nfs4::{ArgOp, Attr, Bitmap, FsLocations, LookupArgs, Op, Operation, op};
use vfs::Principal;

use super::names;
use crate::connect::ConnectError;
use crate::nfs4::Inner;
use crate::nfs4::attributes::getattr;
use crate::nfs4::session::Session;
use crate::url::Url;

/// So many places are told, at most.
const TOLD_MAX: usize = 8;

/// What is told to whoever wants to mount it.
pub(super) async fn error(inner: &Inner, url: &Url, session: &Arc<Session>) -> ConnectError {
    let locations = locations(inner, url, session).await.unwrap_or_default();
    ConnectError::Moved { server: inner.server, export: url.export_text(), locations }
}

/// Asks for the places, as URLs. None if the server does not say.
async fn locations(inner: &Inner, url: &Url, session: &Arc<Session>) -> Option<Vec<String>> {
    let names = names(url);
    let mut depth = names.len();
    // The first time it may be that only a directory above was found: that one is asked the second time.
    for _ in 0..2 {
        let mut operations: Vec<ArgOp> = vec![op::Putrootfh::with(())];
        let lookup = |name: &_| op::Lookup::with(LookupArgs { objname: Clone::clone(name) });
        operations.extend(names[..depth].iter().map(lookup));
        operations.push(getattr(Bitmap::of(&[Attr::FsLocations, Attr::Fsid])));
        let principal = &Principal::Machine;
        let mut results = inner.within(session, principal, Operation::Getattr, operations).await.ok()?;
        results.take::<op::Putrootfh>().ok()?;
        let found = (0..depth).take_while(|_| results.take::<op::Lookup>().is_ok()).count();
        if found == depth {
            let fs_locations = results.take::<op::Getattr>().ok()?.obj_attributes.fs_locations?;
            let below: Vec<&[u8]> = names[depth..].iter().map(|name| &name[..]).collect();
            return Some(urls(&fs_locations, &below));
        }
        depth = found;
    }
    None
}

/// The places with what is below, as URLs.
fn urls(at: &FsLocations, below: &[&[u8]]) -> Vec<String> {
    let of = |location: &protocol::nfs4::FsLocation| {
        let names = location.rootpath.iter().map(|name| &name[..]).chain(below.iter().copied());
        let path: String = names.map(|name| format!("/{}", name.escape_ascii())).collect();
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let url = |server: &protocol::nfs4::Limited| {
            let host = server.escape_ascii().to_string();
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            format!("nfs://{host}{path}")
        };
        location.server.iter().map(url).collect::<Vec<_>>()
    };
    at.locations.iter().flat_map(of).take(TOLD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::nfs4::{Component, FsLocation, Limited, Pathname};
    use xdr::List;

    #[test]
    fn places_are_told_as_urls_of_what_was_wanted() {
        let location = |hosts: &[&'static [u8]], path: &[&'static [u8]]| FsLocation {
            server: List::new(hosts.iter().map(|host| Limited::new(*host).unwrap()).collect()).unwrap(),
            rootpath: Pathname::new(path.iter().map(|name| Component::new(*name).unwrap()).collect())
                .unwrap(),
        };
        let locations = vec![location(&[b"b", b"2001:db8::1"], &[b"srv"]), location(&[b"x\n"], &[])];
        let at = FsLocations { fs_root: Pathname::default(), locations: List::new(locations).unwrap() };
        assert_eq!(
            urls(&at, &[b"sub"]),
            ["nfs://b/srv/sub", "nfs://[2001:db8::1]/srv/sub", "nfs://x\\n/sub"],
            "in one line, whatever the server says"
        );
        assert_eq!(urls(&at, &[])[2], "nfs://x\\n/");
    }
}
