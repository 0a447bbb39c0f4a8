//! The exports, the clients that may use them, and their options, in the words of exports(5).

mod clients;
mod hosts;
pub(crate) mod known;
mod locations;
pub(crate) mod pseudo;
mod ranges;
mod sec;
mod table;
mod xprtsec;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use rpc::TransportSecurity;
use siphasher::sip128::{Hasher128, SipHasher};
use std::hash::Hasher;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use vfs::{Caller, FileSystem, NullFileSystem};

pub use clients::ClientList;
pub use hosts::HostDatabase;
use known::{Knowledge, Known};
pub use locations::{Location, Locations};
pub use sec::{Flavor, Sec};
pub use table::{Admitting, Exports, ExportsError};
pub use xprtsec::XprtSec;

/// The durable id of an export in handles. It is derived from the export's identity and not from its
/// position in a table. So another proxy of the same origin computes the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(pub u32);

impl ExportId {
    /// The id for `identity`: `nfs://origin/export` for a proxy, or the path of a local directory.
    pub fn of(identity: &str) -> ExportId {
        let mut hasher = SipHasher::new();
        hasher.write(identity.as_bytes());
        ExportId(hasher.finish128().h1 as u32)
    }
}

/// The users of a client that are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// `root_squash`: user and group 0.
    #[default]
    Root,
    /// `no_root_squash`: no user.
    None,
    /// `all_squash`: all users.
    All,
}

/// Options of an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// `ro`
    pub read_only: bool,
    /// `root_squash`, `no_root_squash`, `all_squash`
    pub squash: Squash,
    /// `anonuid`
    pub anonuid: u32,
    /// `anongid`
    pub anongid: u32,
    /// `secure`: accept only source ports below 1024.
    pub secure: bool,
    /// The clients that may use the export; all, if empty.
    pub clients: ClientList,
    /// `xprtsec`: the kinds of connections over which they may use it.
    pub xprtsec: XprtSec,
    /// `sec`: the flavors of authentication that they may use it with.
    pub sec: Sec,
    /// `refer`: the export is at these locations and not here. The server never looks at its local
    /// directory.
    pub refer: Locations,
    /// With `refer`: clients of versions 2 and 3, which cannot be sent elsewhere, are served here.
    pub serves_older: bool,
    /// `replicas`: further locations of the export.
    pub replicas: Locations,
}

impl ExportOptions {
    /// Is this peer on the list, and does the export accept its port and the security of its connection?
    /// A port does not matter for a user who can prove who it is. That is known with a call, so the port of
    /// a call that proves nothing is checked again by [`ExportOptions::takes`].
    pub fn admits(&self, peer: SocketAddr, security: TransportSecurity) -> bool {
        self.shows(peer.ip(), security) && (self.accepts_port(peer) || self.sec.has_kerberos())
    }

    /// As [`ExportOptions::admits`], for a call that has a proven user or not.
    pub fn takes(&self, peer: SocketAddr, security: TransportSecurity, is_proven: bool) -> bool {
        self.shows(peer.ip(), security) && (is_proven || self.accepts_port(peer))
    }

    /// Is the port one that only root can have, or does that not matter?
    pub fn accepts_port(&self, peer: SocketAddr) -> bool {
        !self.secure || peer.port() < 1024
    }

    /// As [`ExportOptions::admits`], for a peer that asks for names alone, from any port.
    pub fn shows(&self, peer: IpAddr, security: TransportSecurity) -> bool {
        self.clients.admits(peer) && self.xprtsec.allows(security)
    }
}

impl Default for ExportOptions {
    /// As exports(5): `root_squash`, `secure`, anonymous user 65534; writable, for all clients.
    fn default() -> ExportOptions {
        ExportOptions {
            read_only: false,
            squash: Squash::Root,
            anonuid: 65534,
            anongid: 65534,
            secure: true,
            clients: ClientList::default(),
            xprtsec: XprtSec::default(),
            sec: Sec::default(),
            refer: Locations::default(),
            serves_older: false,
            replicas: Locations::default(),
        }
    }
}

/// Tells the file systems of one export from those of others with the same `fsid`, in versions whose `fsid`
/// is one number. That of version 4 has the id of the export in its second number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FsidSalt(pub(crate) u64);

impl FsidSalt {
    /// The `fsid` that clients see.
    pub(crate) fn over(self, fsid: u64) -> u64 {
        fsid ^ self.0
    }
}

/// One export.
pub struct Export {
    /// Its id in handles.
    pub id: ExportId,
    /// The path that clients mount.
    pub path: String,
    fs: OnceLock<Arc<dyn FileSystem>>,
    /// The file system has come.
    came: Notify,
    /// A client has asked for it while it was awaited.
    asked: watch::Sender<bool>,
    pub(crate) fsid_salt: FsidSalt,
    known: Knowledge,
    options: ArcSwap<ExportOptions>,
}

/// Answers for a file system that is not there yet.
static NOT_YET: LazyLock<Arc<dyn FileSystem>> = LazyLock::new(|| Arc::new(NullFileSystem));

impl Export {
    /// An export.
    pub fn new(id: ExportId, path: String, fs: Arc<dyn FileSystem>, options: ExportOptions) -> Export {
        Export::awaited(id, path, options).with(fs)
    }

    /// An export whose file system is not there yet. Until [`crate::Front::supply`] brings it, clients are
    /// told to come back later (`NFS4ERR_DELAY`, `NFS3ERR_JUKEBOX`).
    pub fn awaited(id: ExportId, path: String, options: ExportOptions) -> Export {
        let options = ArcSwap::from_pointee(options);
        Export {
            id,
            path,
            fs: OnceLock::new(),
            came: Notify::new(),
            asked: watch::Sender::new(false),
            fsid_salt: FsidSalt::default(),
            known: Knowledge::default(),
            options,
        }
    }

    /// The export with its file system.
    #[must_use]
    pub fn with(self, fs: Arc<dyn FileSystem>) -> Export {
        self.supply(fs);
        self
    }

    /// Origins behind different exports may use the same `fsid`. Clients of versions 2 and 3 see another one,
    /// in which this export has its part.
    #[must_use]
    pub fn among_others(self) -> Export {
        let id = u64::from(self.id.0);
        Export { fsid_salt: FsidSalt(id << 32 | id.rotate_left(7)), ..self }
    }

    /// The file system behind it. While that is awaited, one that answers every request with `Delay`.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        self.fs.get().unwrap_or_else(|| &NOT_YET)
    }

    /// Its root and the limits of its file system.
    pub(crate) async fn known(&self, caller: &Caller) -> vfs::Result<Arc<Known>> {
        self.known.of(caller, self.fs()).await
    }

    /// Does the file system wait for an origin that does not answer?
    pub(crate) fn is_silent(&self) -> bool {
        self.fs().unanswered_since().is_some_and(|since| since.borrow().is_some())
    }

    /// Is the file system not there yet?
    pub fn is_awaited(&self) -> bool {
        self.fs.get().is_none()
    }

    /// The file system is there. Returns false if there was one already.
    pub(crate) fn supply(&self, fs: Arc<dyn FileSystem>) -> bool {
        let is_first = self.fs.set(fs).is_ok();
        self.came.notify_waiters();
        is_first
    }

    /// A client asks for the file system.
    pub(crate) fn ask(&self) {
        if self.is_awaited() {
            self.asked.send_if_modified(|asked| !std::mem::replace(asked, true));
        }
    }

    /// Waits until a client asks for the file system while it is awaited.
    pub async fn is_asked_for(&self) {
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Waits for the file system, but not for longer than this. Is it there?
    pub(crate) async fn comes(&self, limit: Duration) -> bool {
        self.ask();
        let coming = self.came.notified();
        if self.is_awaited() {
            let _ = timeout(limit, coming).await;
        }
        !self.is_awaited()
    }

    /// Its options now.
    pub fn options(&self) -> Guard<Arc<ExportOptions>> {
        self.options.load()
    }

    /// From the next call on, these options are in force. Where the export is, with `refer` and `replicas`,
    /// stays. Names of clients must have been looked up ([`ClientList::look_up`]).
    pub fn set_options(&self, mut options: ExportOptions) {
        let now = self.options();
        options.clients.take_addresses_of(&now.clients);
        let (refer, replicas) = (now.refer.clone(), now.replicas.clone());
        let serves_older = now.serves_older;
        self.options.store(Arc::new(ExportOptions { refer, serves_older, replicas, ..options }));
    }

    /// Is the export on another server (RFC 8881, section 11.2)?
    pub fn is_absent(&self) -> bool {
        !self.options().refer.is_empty()
    }

    /// Is it so for clients of versions 2 and 3, which cannot be told where?
    pub fn is_absent_for_older(&self) -> bool {
        self.is_absent() && !self.options().serves_older
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({})", self.path)
    }
}
