//! MOUNT: converts a path to the first handle. Version 1 (RFC 1094, appendix A) is for `NFSv2`, version 3
//! (RFC 1813, appendix I) for `NFSv3`. They differ in the handle and in the other results of a success.

use xdr::{Inline, LinkedList, List, Opaque, Xdr};

/// `MNTPATHLEN`: the most bytes in a path.
pub const PATH_MAX: usize = 1024;
/// `MNTNAMLEN`: the most bytes in the name of a host or group.
pub const NAME_MAX: usize = 255;
/// The most entries in a list: of mounts, of exports, of groups.
pub const LIST_MAX: usize = 4096;
/// The most authentication flavors that an export lists.
pub const FLAVORS_MAX: usize = 32;

/// `dirpath`.
pub type Dirpath = Opaque<PATH_MAX>;
/// `name`.
pub type Name = Opaque<NAME_MAX>;

crate::reply::failures! {
    /// `mountstat3` without `MNT3_OK`, which is [`crate::Reply::Ok`]. Version 1 has Unix error numbers, which
    /// are the same.
    Stat {
        /// `MNT3ERR_PERM`: not owner.
        Perm = 1,
        /// `MNT3ERR_NOENT`: no such file or directory.
        NoEnt = 2,
        /// `MNT3ERR_IO`: an input or output error.
        Io = 5,
        /// `MNT3ERR_ACCES`: permission denied.
        Acces = 13,
        /// `MNT3ERR_NOTDIR`: not a directory.
        NotDir = 20,
        /// `MNT3ERR_INVAL`: invalid argument.
        Inval = 22,
        /// `MNT3ERR_NAMETOOLONG`: the name is too long.
        NameTooLong = 63,
        /// `MNT3ERR_NOTSUPP`: not supported.
        NotSupp = 10004,
        /// `MNT3ERR_SERVERFAULT`: a failure of the server.
        ServerFault = 10006,
    }
}

/// `mountbody`: a mount that the server considers to be in use.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Mountbody {
    /// The client's host name.
    pub hostname: Name,
    /// The mounted directory.
    pub directory: Dirpath,
}

/// `exportnode`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Exportnode {
    /// The path.
    pub dir: Dirpath,
    /// Groups that may mount it; if empty, everybody may.
    pub groups: LinkedList<Name, LIST_MAX>,
}

/// `mountlist`.
pub type Mountlist = LinkedList<Mountbody, LIST_MAX>;
/// `exports`.
pub type Exports = LinkedList<Exportnode, LIST_MAX>;

/// `mountres3_ok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MountOk {
    /// The root of the export.
    pub fhandle: Inline<64>,
    /// Flavors that may be used with it, the preferred one first. An empty list states nothing.
    pub auth_flavors: List<u32, FLAVORS_MAX>,
}

/// Version 1.
pub mod v1 {
    use super::{Dirpath, Exports, Mountlist, Stat};
    use crate::program::program;

    /// `fhstatus`.
    pub type MntRes = crate::Reply<[u8; 32], Stat>;

    program! {
        100_005, 1;
        /// Do nothing.
        Null = 0, "NULL", () => ();
        /// Add a mount entry.
        Mnt = 1, "MNT", Dirpath => MntRes;
        /// Return the mount entries.
        Dump = 2, "DUMP", () => Mountlist;
        /// Remove a mount entry.
        Umnt = 3, "UMNT", Dirpath => ();
        /// Remove all mount entries of the caller.
        Umntall = 4, "UMNTALL", () => ();
        /// Return the export list.
        Export = 5, "EXPORT", () => Exports;
    }
}

/// Version 3.
pub mod v3 {
    use super::{Dirpath, Exports, MountOk, Mountlist, Stat};
    use crate::program::program;

    /// `mountres3`.
    pub type MntRes = crate::Reply<MountOk, Stat>;

    program! {
        100_005, 3;
        /// Do nothing.
        Null = 0, "NULL", () => ();
        /// Add a mount entry.
        Mnt = 1, "MNT", Dirpath => MntRes;
        /// Return the mount entries.
        Dump = 2, "DUMP", () => Mountlist;
        /// Remove a mount entry.
        Umnt = 3, "UMNT", Dirpath => ();
        /// Remove all mount entries of the caller.
        Umntall = 4, "UMNTALL", () => ();
        /// Return the export list.
        Export = 5, "EXPORT", () => Exports;
    }
}
