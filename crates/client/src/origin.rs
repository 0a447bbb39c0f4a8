//! A mounted export over any version of NFS.

use std::net::SocketAddr;
use std::sync::Arc;

use vfs::{FileSystem, Handle};

use crate::connect::ConnectError;
use crate::counts::ProcedureCounts;
use crate::nfs3::Nfs3;
use crate::nfs4::{Incarnation, Nfs4};
use crate::nqnfs::Nqnfs;
use crate::url::{Proto, Url, Version};

/// See [`connect`]. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Version 3.
    V3(Arc<Nfs3>),
    /// Version 4.1 or 4.2.
    V4(Arc<Nfs4>),
    /// NQNFS.
    Nqnfs(Arc<Nqnfs>),
}

/// Mounts the export of a URL with the highest version that its `vers` allows and the server supports: 4.2,
/// 4.1, 3.
///
/// # Errors
/// One line for the user: what failed, and what to do.
pub async fn connect(url: &Url) -> Result<Origin, ConnectError> {
    connect_as(url, Incarnation::volatile(url)).await
}

/// Mounts as this client, if the version has client ids, and takes over what its last incarnation held.
pub async fn connect_as(url: &Url, incarnation: Incarnation) -> Result<Origin, ConnectError> {
    let vers = url.options.vers;
    if vers == Version::Nqnfs {
        return Ok(Origin::Nqnfs(Arc::new(Nqnfs::connect(url).await?)));
    }
    let udp = url.options.proto == Proto::Udp;
    if vers.minors().is_empty() || (vers.takes_v3() && udp) {
        return Ok(Origin::V3(Arc::new(Nfs3::connect(url).await?)));
    }
    let version4 = async || {
        Nfs4::connect_as(url, incarnation.clone()).await.map(|mounted| Origin::V4(Arc::new(mounted)))
    };
    let refused = match version4().await {
        Err(refused) if vers.takes_v3() && refused.leaves_v3() => refused,
        decided => return decided,
    };
    match Nfs3::connect(url).await {
        // A server that was just starting may support version 4 by now, and the choice is permanent.
        Ok(mounted) if refused.is_no_answer() => match version4().await {
            Ok(mounted) => Ok(mounted),
            Err(_) => Ok(Origin::V3(Arc::new(mounted))),
        },
        Ok(mounted) => Ok(Origin::V3(Arc::new(mounted))),
        // The server supports version 4, so report its answer.
        Err(_) if matches!(refused, ConnectError::Refused4 { .. }) => Err(refused),
        // If the server is away, do not report the port of MOUNT.
        Err(failed) if refused.is_no_answer() && failed.is_no_answer() => Err(refused),
        Err(failed) => Err(failed),
    }
}

impl Origin {
    /// For the layer above.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        match self {
            Origin::V3(origin) => origin.clone(),
            Origin::V4(origin) => origin.clone(),
            Origin::Nqnfs(origin) => origin.clone(),
        }
    }

    /// Records the state held at the server in the file `path` from now on, for the next incarnation. A
    /// version without state records nothing.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_record(&self, path: &std::path::Path) -> std::io::Result<()> {
        match self {
            Origin::V3(_) | Origin::Nqnfs(_) => Ok(()),
            Origin::V4(origin) => origin.keep_record(path),
        }
    }

    /// See [`Nfs4::holds_for_others`]. Other versions hold no state for others.
    pub fn holds_for_others(&self) {
        if let Origin::V4(origin) = self {
            origin.holds_for_others();
        }
    }

    /// Says that there will be no next incarnation. Shutting down then gives back all state, recorded or not.
    pub fn leave_nothing(&self) {
        if let Origin::V4(origin) = self {
            origin.leave_nothing();
        }
    }

    /// The mounted URL. Its options tell a cache above its attribute timeouts.
    pub fn url(&self) -> &Url {
        match self {
            Origin::V3(origin) => origin.url(),
            Origin::V4(origin) => origin.url(),
            Origin::Nqnfs(origin) => origin.url(),
        }
    }

    /// `3`, `4.1`, `4.2` or `nqnfs`.
    pub fn version(&self) -> &'static str {
        match self {
            Origin::V3(_) => "3",
            Origin::Nqnfs(_) => "nqnfs",
            Origin::V4(origin) if origin.minor() == 1 => "4.1",
            Origin::V4(_) => "4.2",
        }
    }

    /// The server's address and port of NFS.
    pub fn server(&self) -> SocketAddr {
        match self {
            Origin::V3(origin) => origin.server(),
            Origin::V4(origin) => origin.server(),
            Origin::Nqnfs(origin) => origin.server(),
        }
    }

    /// The handle of the export's root.
    pub fn root_handle(&self) -> Handle {
        match self {
            Origin::V3(origin) => origin.root_handle(),
            Origin::V4(origin) => origin.root_handle(),
            Origin::Nqnfs(origin) => origin.root_handle(),
        }
    }

    /// The calls made to the server so far, by name: procedures, or the main operations of compounds.
    pub fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        match self {
            Origin::V3(origin) => origin.counts().called().map(|(it, counts)| (it.name(), *counts)).collect(),
            Origin::V4(origin) => origin.counts().called().map(|(it, counts)| (it.name(), *counts)).collect(),
            Origin::Nqnfs(origin) => {
                origin.counts().called().map(|(it, counts)| (it.name(), *counts)).collect()
            }
        }
    }

    /// How often the server's answer made no sense.
    pub fn nonsense_heard(&self) -> u64 {
        match self {
            Origin::V3(origin) => origin.nonsense_heard(),
            Origin::V4(origin) => origin.nonsense_heard(),
            Origin::Nqnfs(origin) => origin.nonsense_heard(),
        }
    }
}
