//! Referrals (RFC 8881, section 11.4): the server says that an export, or something below it, is on another
//! server.
//!
//! A referral is not followed here, because the cache and the state at an origin belong to the server that
//! the user named. Somebody above may follow it, with a cache for the other server. Otherwise the user is
//! told the URL.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nfs4::{ArgOp, Attr, Bitmap, Component, FsLocations, LookupArgs, Op, Operation, Results, op};
use tokio::time::{Instant, timeout};
use vfs::{Handle, Principal};

use super::attributes::getattr;
use super::session::Session;
use super::{Nfs4Client, convert};
use crate::connect::ConnectError;
use crate::origin::{Follow, Location, Referral};

/// Most locations to report.
const TOLD_MAX: usize = 8;
/// At most one warning in this time.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long asking for the locations may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The error for mounting the export at this path.
pub(super) async fn error(inner: &Nfs4Client, names: &[Component], session: &Arc<Session>) -> ConnectError {
    let locations = locations(inner, names, session).await.unwrap_or_default();
    ConnectError::Moved { server: inner.server, export: inner.url.export_text(), locations }
}

/// Asks for the locations of a path, as URLs. `None` if the server does not say.
async fn locations(inner: &Nfs4Client, names: &[Component], session: &Arc<Session>) -> Option<Vec<String>> {
    let mut depth = names.len();
    // The first attempt may find only a directory above. The second attempt asks about that one.
    for _ in 0..2 {
        let mut way: Vec<ArgOp> = vec![op::Putrootfh::with(())];
        let lookup = |name: &Component| op::Lookup::with(LookupArgs { objname: name.clone() });
        way.extend(names[..depth].iter().map(lookup));
        let mut results = ask(inner, session, way).await?;
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

/// Asks for the locations of the object to which these operations lead.
async fn ask(inner: &Nfs4Client, session: &Arc<Session>, mut way: Vec<ArgOp>) -> Option<Results> {
    way.push(getattr(Bitmap::of(&[Attr::FsLocations, Attr::Fsid])));
    let asked = inner.within(session, &Principal::Machine, Operation::Getattr, way);
    timeout(PATIENCE, asked).await.ok()?.ok()
}

/// Takes referrals.
pub(super) struct Following {
    follow: Arc<Follow>,
    /// The last answers, by the way to the referral. Many clients may meet one referral at a time.
    answered: Mutex<HashMap<Way, (Instant, bool)>>,
}

/// A directory, and the names that lead from there to a referral.
type Way = (Handle, Vec<Vec<u8>>);

/// How long an answer is good for.
const ANSWER_KEPT: Duration = Duration::from_secs(1);
/// The most answers that are kept.
const ANSWERS_MAX: usize = 256;

impl Following {
    pub(super) fn new(follow: Arc<Follow>) -> Following {
        Following { follow, answered: Mutex::default() }
    }

    fn answered(&self, way: &Way) -> Option<bool> {
        let answered = self.answered.lock();
        answered.get(way).filter(|(at, _)| at.elapsed() < ANSWER_KEPT).map(|(_, is_followed)| *is_followed)
    }

    fn answer(&self, (directory, names): Way, locations: Vec<Location>) -> bool {
        let is_followed = (self.follow)(Referral { directory, names: names.clone(), locations });
        let mut answered = self.answered.lock();
        if answered.len() >= ANSWERS_MAX {
            answered.clear();
        }
        answered.insert((directory, names), (Instant::now(), is_followed));
        is_followed
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Following")
    }
}

impl Nfs4Client {
    /// A request has met a referral: is it followed? If not, it is logged. The last of the `answered`
    /// operations failed with MOVED.
    pub(super) async fn is_followed(
        &self,
        session: &Arc<Session>,
        operations: Vec<ArgOp>,
        answered: usize,
    ) -> bool {
        let (Some(following), Some(inner)) = (self.follow.get(), self.weak.upgrade()) else {
            self.tell_moved(session, operations, answered);
            return false;
        };
        let way = way_to_failure(operations.clone(), answered);
        let referral = match way.split_first() {
            Some((ArgOp::Putfh(args), lookups)) if !lookups.is_empty() => {
                let name = |lookup: &ArgOp| match lookup {
                    ArgOp::Lookup(args) => Some(args.objname.to_vec()),
                    _ => None,
                };
                let names = lookups.iter().filter_map(name).collect();
                convert::from_wire(&args.object).map(|directory| (directory, names))
            }
            _ => None,
        };
        if let Some(to) = referral {
            let is_followed = if let Some(is_followed) = following.answered(&to) {
                is_followed
            } else {
                let locations = places(&inner, session, way).await;
                following.answer(to, locations.as_ref().map(listed).unwrap_or_default())
            };
            if is_followed {
                return true;
            }
        }
        self.tell_moved(session, operations, answered);
        false
    }

    /// Logs the location of a moved object, at most once in `WARN_EVERY`. The last of the `answered`
    /// operations failed with MOVED.
    pub(super) fn tell_moved(&self, session: &Arc<Session>, operations: Vec<ArgOp>, answered: usize) {
        let now = Instant::now();
        {
            let mut told = self.told_moved.lock();
            if told.is_some_and(|told| now.duration_since(told) < WARN_EVERY) {
                return;
            }
            *told = Some(now);
        }
        let Some(inner) = self.weak.upgrade() else { return };
        let (session, way) = (session.clone(), way_to_failure(operations, answered));
        tokio::spawn(async move {
            let name = way.iter().rev().find_map(|operation| match operation {
                ArgOp::Lookup(args) => Some(args.objname.escape_ascii().to_string()),
                _ => None,
            });
            let locations = places(&inner, &session, way).await;
            let locations = locations.map(|at| urls(&at, &[])).unwrap_or_default();
            let what = name.map_or_else(|| inner.url.export_text(), |name| format!("`{name}`"));
            tracing::warn!(
                "{what} is not on {}, which refers us elsewhere, and that is not followed: {}",
                inner.server,
                crate::connect::way(&locations)
            );
        });
    }
}

/// The operations that lead to the object of the last answered operation.
fn way_to_failure(mut operations: Vec<ArgOp>, answered: usize) -> Vec<ArgOp> {
    operations.truncate(answered.saturating_sub(1));
    let put = operations.iter().rposition(|operation| matches!(operation, ArgOp::Putfh(_)));
    let mut way = operations.split_off(put.unwrap_or(0));
    way.retain(|operation| matches!(operation, ArgOp::Putfh(_) | ArgOp::Lookup(_)));
    way
}

async fn places(inner: &Nfs4Client, session: &Arc<Session>, way: Vec<ArgOp>) -> Option<FsLocations> {
    let lookups = way.iter().filter(|operation| matches!(operation, ArgOp::Lookup(_))).count();
    let mut results = ask(inner, session, way).await?;
    results.take::<op::Putfh>().ok()?;
    for _ in 0..lookups {
        results.take::<op::Lookup>().ok()?;
    }
    results.take::<op::Getattr>().ok()?.obj_attributes.fs_locations.map(|locations| *locations)
}

/// The locations, for somebody who follows them.
fn listed(at: &FsLocations) -> Vec<Location> {
    let of = |location: &protocol::nfs4::FsLocation| {
        let path: Vec<Vec<u8>> = location.rootpath.iter().map(|name| name.to_vec()).collect();
        let at = |host: &protocol::nfs4::Limited| Location { host: host.to_vec(), path: path.clone() };
        location.server.iter().map(at).collect::<Vec<_>>()
    };
    at.locations.iter().flat_map(of).take(TOLD_MAX).collect()
}

/// The locations as URLs, each with the path `below` appended.
fn urls(at: &FsLocations, below: &[&[u8]]) -> Vec<String> {
    let of = |location: &protocol::nfs4::FsLocation| {
        let names = location.rootpath.iter().map(|name| &name[..]).chain(below.iter().copied());
        let names: Vec<String> = names.map(|name| name.escape_ascii().to_string()).collect();
        let path = names.join("/");
        let url = |server: &protocol::nfs4::Limited| {
            let host = server.escape_ascii().to_string();
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            format!("nfs://{host}/{path}")
        };
        location.server.iter().map(url).collect::<Vec<_>>()
    };
    at.locations.iter().flat_map(of).take(TOLD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::nfs4::{FsLocation, Handle, Limited, Pathname, PutfhArgs};
    use xdr::List;

    #[test]
    fn what_is_asked_about_is_what_the_failed_operation_was_asked_of() {
        let put = |byte| op::Putfh::with(PutfhArgs { object: Handle::new(&[byte]).unwrap() });
        let lookup = op::Lookup::with(LookupArgs { objname: Component::new(&b"n"[..]).unwrap() });
        let all = || {
            let first = [put(1), op::Savefh::with(()), put(2), getattr(Bitmap::EMPTY), lookup.clone()];
            first.into_iter().chain([op::Getfh::with(()), getattr(Bitmap::EMPTY)]).collect()
        };
        assert_eq!(way_to_failure(all(), 6), [put(2), lookup.clone()], "GETFH failed");
        assert_eq!(way_to_failure(all(), 5), [put(2)], "LOOKUP failed");
        assert_eq!(way_to_failure(all(), 0), []);
    }

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
