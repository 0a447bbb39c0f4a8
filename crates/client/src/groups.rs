//! Callers with more groups than AUTH_SYS holds: each call carries the sixteen that matter for its object.
//!
//! The layer stands between a cache and the origin. It remembers the group of each object that such a caller
//! has used, or asks for it with a GETATTR, before the call that needs it. If the caller is in the object's
//! group, that group is among the sixteen. This matters in both directions: without the group, an origin may
//! refuse what the group may do, or grant to "others" what the mode denies to the group.
//!
//! The groups of an object may have changed since. If the origin refuses, the layer asks for them again, and
//! repeats the call once if the caller is in a group that was not sent. It also does so if the reply shows
//! such a group, for calls whose success a cache believes. The layer grants nothing by itself.
//! Calls of users with at most sixteen groups pass through.
//!
//! Groups that only an access control list names are not looked for.
//!
//! Promise: more-than-sixteen-groups

mod layer;
mod opens;
mod seen;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Attributes, Caller, Credential, FileSystem, Handle, Principal, Result, Status, Wcc};

use crate::transport::GROUPS_MAX;
use opens::OpenFiles;
use seen::Seen;

/// A remembered group of an object counts for so long: as a remembered right without a change of attributes.
const BELIEVED: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct Sixteen<O: ?Sized> {
    seen: Mutex<Seen>,
    opens: Mutex<OpenFiles>,
    below: Arc<O>,
}

/// The objects of a call, whose groups matter; and a further group that matters.
#[derive(Clone, Copy)]
struct Concerns<'c> {
    objects: &'c [Handle],
    named: Option<u32>,
}

impl<'c> Concerns<'c> {
    fn of(objects: &'c [Handle]) -> Concerns<'c> {
        Concerns { objects, named: None }
    }

    /// A call that gives this group to an object.
    fn gives(objects: &'c [Handle], named: Option<u32>) -> Concerns<'c> {
        Concerns { objects, named }
    }
}

impl<O: FileSystem + ?Sized> Sixteen<O> {
    pub(crate) fn new(below: Arc<O>) -> Sixteen<O> {
        Sixteen { seen: Mutex::default(), opens: Mutex::default(), below }
    }

    /// Makes a call with the groups that matter for these objects. Repeats it once if it was refused and the
    /// groups of the objects have changed.
    async fn with_groups<T, F: Future<Output = Result<T>> + Send>(
        &self,
        caller: &Caller,
        concerns: Concerns<'_>,
        call: impl Fn(Caller) -> F + Send + Sync,
    ) -> Result<T> {
        match many(caller) {
            None => call(caller.clone()).await,
            Some(all) => self.decided(caller, all, concerns, call).await.0,
        }
    }

    /// As `with_groups`. Also says which caller the origin has seen.
    async fn decided<T, F: Future<Output = Result<T>> + Send>(
        &self,
        caller: &Caller,
        all: &Credential,
        concerns: Concerns<'_>,
        call: impl Fn(Caller) -> F + Send + Sync,
    ) -> (Result<T>, Caller) {
        let began = Instant::now();
        let sent = self.choose(caller, all, concerns, began.checked_sub(BELIEVED)).await;
        let result = call(sent.clone()).await;
        if !result.as_ref().is_err_and(|error| is_refusal(error.status)) {
            return (result, sent);
        }
        let other = self.choose(caller, all, concerns, Some(began)).await;
        if is_same(&other, &sent) { (result, sent) } else { (call(other.clone()).await, other) }
    }

    /// The caller with the groups that matter. The group of an object counts if it was learnt at `since` or
    /// later; otherwise the origin is asked. If it does not say, it will not let the call succeed either.
    async fn choose(
        &self,
        caller: &Caller,
        all: &Credential,
        concerns: Concerns<'_>,
        since: Option<Instant>,
    ) -> Caller {
        let mut first: Vec<u32> = concerns.named.into_iter().collect();
        for object in concerns.objects {
            let remembered = self.seen.lock().group(object, since);
            let group = match remembered {
                Some(group) => Some(group),
                None => self.ask(caller, all, object).await,
            };
            first.extend(group);
        }
        sending(caller, all, &first)
    }

    async fn ask(&self, caller: &Caller, all: &Credential, object: &Handle) -> Option<u32> {
        let asked = Instant::now();
        let attributes = self.below.getattr(&sending(caller, all, &[]), object).await.ok()?;
        self.learn(object, &attributes, asked);
        Some(attributes.gid)
    }

    /// The origin has said what the group of an object is, in answer to a call that began at `asked`.
    fn learn(&self, object: &Handle, attributes: &Attributes, asked: Instant) {
        self.seen.lock().learn(*object, attributes.gid, asked);
    }

    /// As `learn`, if the caller is one of those for whom groups are remembered.
    fn note<'a>(
        &self,
        caller: &Caller,
        asked: Instant,
        objects: impl IntoIterator<Item = (&'a Handle, Option<&'a Attributes>)>,
    ) {
        if many(caller).is_some() {
            for (object, attributes) in objects {
                if let Some(attributes) = attributes {
                    self.learn(object, attributes, asked);
                }
            }
        }
    }
}

/// The attributes after a change.
fn after(wcc: &Wcc) -> Option<&Attributes> {
    wcc.after.as_ref()
}

/// The credential of a caller with more groups than AUTH_SYS holds.
fn many(caller: &Caller) -> Option<&Credential> {
    match &caller.principal {
        Principal::Unix(all) if all.groups.len() > GROUPS_MAX => Some(all),
        _ => None,
    }
}

/// The caller with sixteen of its groups: those in `first` that it has, then the others in their order.
fn sending(caller: &Caller, all: &Credential, first: &[u32]) -> Caller {
    let mut groups: Vec<u32> = Vec::with_capacity(GROUPS_MAX);
    let has = |group: &&u32| all.groups.contains(group);
    for group in first.iter().filter(has).chain(&all.groups) {
        if groups.len() == GROUPS_MAX {
            break;
        }
        if *group != all.gid && !groups.contains(group) {
            groups.push(*group);
        }
    }
    let principal = Principal::Unix(Arc::new(Credential { uid: all.uid, gid: all.gid, groups }));
    Caller { principal, ..caller.clone() }
}

/// A caller that was sent is in this group.
fn is_in(sent: &Caller, group: u32) -> bool {
    match &sent.principal {
        Principal::Unix(credential) => credential.gid == group || credential.groups.contains(&group),
        Principal::Machine => false,
    }
}

fn is_same(one: &Caller, other: &Caller) -> bool {
    let groups = |caller: &Caller| match &caller.principal {
        Principal::Unix(credential) => {
            let mut groups = credential.groups.clone();
            groups.sort_unstable();
            groups
        }
        Principal::Machine => Vec::new(),
    };
    groups(one) == groups(other)
}

fn is_refusal(status: Status) -> bool {
    matches!(status, Status::Access | Status::Perm)
}
