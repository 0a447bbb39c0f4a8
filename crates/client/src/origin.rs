//! A file system behind a network connection, whatever protocol it speaks; and the choice of the protocol.
//!
//! [`connect()`] is the only function that names the protocols. Everything above it holds an `Arc<dyn Origin>`.
//! It has the operations of [`FileSystem`], and what a user or an administrator wants to know of the
//! connection.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vfs::{FileSystem, Handle};

use crate::connect::ConnectError;
use crate::counts::ProcedureCounts;
use crate::groups::Sixteen;
use crate::nfs3::Nfs3;
use crate::nfs4::{Incarnation, Nfs4};
use crate::nqnfs::Nqnfs;
use crate::replica::Replica;
use crate::url::{Proto, Url, Version};

/// Numbers of the state held at a server and of the calls in flight. They are zero once
/// [`FileSystem::shutdown`] has given everything back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Opens, with those that are recorded as being closed.
    pub opens: usize,
    /// Leases, with those that are recorded as being returned.
    pub leases: usize,
    /// Calls that wait for an answer.
    pub calls_in_flight: usize,
}

/// A mounted export of a remote server. See [`connect()`].
///
/// No method has a default, so a protocol says itself what it lacks.
pub trait Origin: FileSystem + Debug {
    /// The mounted URL. Its options tell a cache above its attribute timeouts.
    fn url(&self) -> &Url;

    /// The version in use, as the option `vers` of nfs(5) names it: `3`, `4.1`, `4.2` or `nqnfs`.
    fn version(&self) -> &'static str;

    /// The server's address and port of NFS.
    fn server(&self) -> SocketAddr;

    /// The handle of the export's root.
    fn root_handle(&self) -> Handle;

    /// How long the server keeps the state of a client that is silent, and how long a delegation may take to
    /// come back after a recall. `None` if it keeps no state.
    fn lease_time(&self) -> Option<Duration>;

    /// The calls made to the server so far, by name: procedures, or the main operations of compounds. The
    /// calls of mounting are left out.
    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)>;

    /// How often the server's answer made no sense.
    fn nonsense_heard(&self) -> u64;

    /// Counts the state held at the server, and the calls in flight.
    fn held(&self) -> Holdings;

    /// Are files opened at the server? If not, [`vfs::Opens::open`] fails with `NotSupp`. The same as
    /// `Features::STATE` of [`FileSystem::limits`], without a call.
    fn has_opens(&self) -> bool;

    /// Records the state held at the server in the file `path` from now on, before any caller relies on it,
    /// so that the next incarnation can take it over. Then [`FileSystem::shutdown`] gives nothing back,
    /// unless [`Origin::leave_nothing`] was called. A protocol whose state dies with the process writes no
    /// file.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn keep_record(&self, path: &Path) -> std::io::Result<()>;

    /// Keeps a copy of the record there, so that another machine can take the state over. Must be called
    /// before [`Origin::keep_record`]. Versions without state at the server have nothing to copy, and the
    /// locks of version 3 are not copied.
    fn replicate_record(&self, replica: Arc<dyn Replica>);

    /// Says that there will be no next incarnation that takes over this state. So [`FileSystem::shutdown`]
    /// gives it back even if it is recorded, and removes the record.
    fn leave_nothing(&self);

    /// Says that the holders among the callers are clients of ours, and that the layers above know which of
    /// them can give up state. If the server has no capacity for an open, the open then fails with `Resource`
    /// and is not retried until the caller's deadline.
    fn holds_for_others(&self);

    /// Asks `follow` about referrals from now on. A request that meets one which is followed fails with
    /// `Delay`. By default, and in protocols without referrals, they are only logged.
    fn follow_referrals(&self, follow: Arc<Follow>);
}

/// The server says that a directory is on another server (RFC 8881, section 11.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// The directory above, which is on this server.
    pub directory: Handle,
    /// The names on the way from there, at least one.
    pub names: Vec<Vec<u8>>,
    /// The locations; none if the server names none.
    pub locations: Vec<Location>,
}

/// A place to which a server refers. Nothing of it has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// A name or an address.
    pub host: Vec<u8>,
    /// The components of the path there, from the root of its name space.
    pub path: Vec<Vec<u8>>,
}

/// Takes a referral. True if it is followed. It must not block.
pub type Follow = dyn Fn(Referral) -> bool + Send + Sync;

/// Mounts the export of a URL with the highest version that its `vers` allows and the server supports: 4.2,
/// 4.1, 3.
///
/// # Errors
/// One line for the user: what failed, and what to do.
pub async fn connect(url: &Url) -> Result<Arc<dyn Origin>, ConnectError> {
    connect_as(url, Incarnation::volatile(url)).await
}

/// Mounts as this client, if the version has client ids, and takes over what its last incarnation held.
///
/// # Errors
/// Those of [`connect()`].
pub async fn connect_as(url: &Url, incarnation: Incarnation) -> Result<Arc<dyn Origin>, ConnectError> {
    let origin = choose(url, incarnation).await?;
    Ok(Arc::new(Sixteen::new(origin)))
}

/// The choice of [`connect_as`].
async fn choose(url: &Url, incarnation: Incarnation) -> Result<Arc<dyn Origin>, ConnectError> {
    let vers = url.options.vers;
    if vers == Version::Nqnfs {
        return Ok(Arc::new(Nqnfs::connect(url).await?));
    }
    let udp = url.options.proto == Proto::Udp;
    let version3 = async || Nfs3::connect_as(url, incarnation.locks.clone()).await;
    if vers.minors().is_empty() || (vers.takes_v3() && udp) {
        return Ok(Arc::new(version3().await?));
    }
    let version4 = async || {
        let mounted = Nfs4::connect_as(url, incarnation.clone()).await;
        mounted.map(|mounted| Arc::new(mounted) as Arc<dyn Origin>)
    };
    let refused = match version4().await {
        Err(refused) if vers.takes_v3() && refused.leaves_v3() => refused,
        decided => return decided,
    };
    match version3().await {
        // A server that was just starting may support version 4 by now, and the choice is permanent.
        Ok(mounted) if refused.is_no_answer() => match version4().await {
            Ok(mounted) => Ok(mounted),
            Err(_) => Ok(Arc::new(mounted)),
        },
        Ok(mounted) => Ok(Arc::new(mounted)),
        // The server supports version 4, so report its answer.
        Err(_) if matches!(refused, ConnectError::Refused4 { .. }) => Err(refused),
        // If the server is away, do not report the port of MOUNT.
        Err(failed) if refused.is_no_answer() && failed.is_no_answer() => Err(refused),
        Err(failed) => Err(failed),
    }
}
