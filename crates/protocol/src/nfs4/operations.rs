//! The operations of all minor versions: number, name, first minor version, arguments and results (RFC 7530,
//! section 16; RFC 8881, section 18; RFC 7862, section 15; RFC 8276, section 8.4).

use super::{
    AccessArgs, AccessOk, AllocateArgs, BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionOk,
    CloneArgs, CloseArgs, CommitArgs, CommitOk, CopyArgs, CopyFailure, CopyNotifyArgs, CopyNotifyOk, CopyOk,
    CreateArgs, CreateOk, CreateSessionArgs, CreateSessionOk, DelegpurgeArgs, DelegreturnArgs,
    DestroyClientidArgs, DestroySessionArgs, ExchangeIdArgs, ExchangeIdOk, FreeStateidArgs,
    GetDirDelegationArgs, GetDirDelegationOk, GetattrArgs, GetattrOk, GetdeviceinfoArgs,
    GetdeviceinfoFailure, GetdeviceinfoOk, GetdevicelistArgs, GetdevicelistOk, GetfhOk, GetxattrOk,
    IoAdviseArgs, IoAdviseOk, LayoutcommitArgs, LayoutcommitOk, LayouterrorArgs, LayoutgetArgs,
    LayoutgetFailure, LayoutgetOk, LayoutreturnArgs, LayoutreturnOk, LayoutstatsArgs, LinkArgs, LinkOk,
    ListxattrsArgs, ListxattrsOk, LockArgs, LockFailure, LockOk, LocktArgs, LockuArgs, LookupArgs,
    OffloadArgs, OffloadStatusOk, OpenArgs, OpenConfirmArgs, OpenDelegation, OpenDowngradeArgs, OpenOk,
    OpenStateidOk, OpenattrArgs, PutfhArgs, ReadArgs, ReadOk, ReadPlusArgs, ReadPlusOk, ReaddirArgs,
    ReaddirOk, ReadlinkOk, ReclaimCompleteArgs, ReleaseLockownerArgs, RemoveArgs, RemoveOk, RenameArgs,
    RenameOk, RenewArgs, SecinfoArgs, SecinfoOk, SecinfoStyle, SeekArgs, SeekOk, SequenceArgs, SequenceOk,
    SetSsvArgs, SetSsvOk, SetattrArgs, SetattrFailure, SetattrOk, SetclientidArgs, SetclientidConfirmArgs,
    SetclientidFailure, SetclientidOk, SetxattrArgs, Status, TestStateidArgs, TestStateidOk, VerifyArgs,
    WantDelegationArgs, WriteArgs, WriteOk, WriteResponse, WriteSameArgs, XattrArgs, XattrChangedOk,
};

super::table::operations! {
    /// `nfs_opnum4`.
    Operation, ArgOp, ResOp, op;
    /// Check access permission.
    Access = 3, "ACCESS", 0, AccessArgs => Result<AccessOk, Status>;
    /// Close a file.
    Close = 4, "CLOSE", 0, CloseArgs => Result<OpenStateidOk, Status>;
    /// Commit cached data on a server to stable storage.
    Commit = 5, "COMMIT", 0, CommitArgs => Result<CommitOk, Status>;
    /// Create an object other than a regular file.
    Create = 6, "CREATE", 0, CreateArgs => Result<CreateOk, Status>;
    /// Discard the delegations of an earlier incarnation.
    Delegpurge = 7, "DELEGPURGE", 0, DelegpurgeArgs => Result<(), Status>;
    /// Return a delegation.
    Delegreturn = 8, "DELEGRETURN", 0, DelegreturnArgs => Result<(), Status>;
    /// Get attributes.
    Getattr = 9, "GETATTR", 0, GetattrArgs => Result<GetattrOk, Status>;
    /// Get the current handle.
    Getfh = 10, "GETFH", 0, () => Result<GetfhOk, Status>;
    /// Create a link to a file.
    Link = 11, "LINK", 0, LinkArgs => Result<LinkOk, Status>;
    /// Lock a range.
    Lock = 12, "LOCK", 0, LockArgs => Result<LockOk, LockFailure>;
    /// Test for a lock.
    Lockt = 13, "LOCKT", 0, LocktArgs => Result<(), LockFailure>;
    /// Unlock a range.
    Locku = 14, "LOCKU", 0, LockuArgs => Result<LockOk, Status>;
    /// Look up a name.
    Lookup = 15, "LOOKUP", 0, LookupArgs => Result<(), Status>;
    /// Look up the parent directory.
    Lookupp = 16, "LOOKUPP", 0, () => Result<(), Status>;
    /// Verify a difference in attributes.
    Nverify = 17, "NVERIFY", 0, VerifyArgs => Result<(), Status>;
    /// Open a file, and create it if requested.
    Open = 18, "OPEN", 0, OpenArgs => Result<OpenOk, Status>;
    /// Open the directory of named attributes.
    Openattr = 19, "OPENATTR", 0, OpenattrArgs => Result<(), Status>;
    /// Confirm an open.
    OpenConfirm = 20, "OPEN_CONFIRM", 0, OpenConfirmArgs => Result<OpenStateidOk, Status>;
    /// Reduce an open's access.
    OpenDowngrade = 21, "OPEN_DOWNGRADE", 0, OpenDowngradeArgs => Result<OpenStateidOk, Status>;
    /// Set the current handle.
    Putfh = 22, "PUTFH", 0, PutfhArgs => Result<(), Status>;
    /// Make the public handle the current one.
    Putpubfh = 23, "PUTPUBFH", 0, () => Result<(), Status>;
    /// Make the root the current handle.
    Putrootfh = 24, "PUTROOTFH", 0, () => Result<(), Status>;
    /// Read from a file.
    Read = 25, "READ", 0, ReadArgs => Result<ReadOk, Status>;
    /// Read from a directory.
    Readdir = 26, "READDIR", 0, ReaddirArgs => Result<ReaddirOk, Status>;
    /// Read from a symbolic link.
    Readlink = 27, "READLINK", 0, () => Result<ReadlinkOk, Status>;
    /// Remove a name.
    Remove = 28, "REMOVE", 0, RemoveArgs => Result<RemoveOk, Status>;
    /// Rename an object.
    Rename = 29, "RENAME", 0, RenameArgs => Result<RenameOk, Status>;
    /// Renew a lease.
    Renew = 30, "RENEW", 0, RenewArgs => Result<(), Status>;
    /// Make the saved handle the current one.
    Restorefh = 31, "RESTOREFH", 0, () => Result<(), Status>;
    /// Save the current handle.
    Savefh = 32, "SAVEFH", 0, () => Result<(), Status>;
    /// Get the security flavors for a name.
    Secinfo = 33, "SECINFO", 0, SecinfoArgs => Result<SecinfoOk, Status>;
    /// Set attributes.
    Setattr = 34, "SETATTR", 0, SetattrArgs => Result<SetattrOk, SetattrFailure>;
    /// Negotiate a client id.
    Setclientid = 35, "SETCLIENTID", 0, SetclientidArgs => Result<SetclientidOk, SetclientidFailure>;
    /// Confirm a client id.
    SetclientidConfirm = 36, "SETCLIENTID_CONFIRM", 0, SetclientidConfirmArgs => Result<(), Status>;
    /// Verify that attributes are the same.
    Verify = 37, "VERIFY", 0, VerifyArgs => Result<(), Status>;
    /// Write to a file.
    Write = 38, "WRITE", 0, WriteArgs => Result<WriteOk, Status>;
    /// Discard a lock owner.
    ReleaseLockowner = 39, "RELEASE_LOCKOWNER", 0, ReleaseLockownerArgs => Result<(), Status>;
    /// Change the backchannel's program and credentials.
    BackchannelCtl = 40, "BACKCHANNEL_CTL", 1, BackchannelCtlArgs => Result<(), Status>;
    /// Use a connection for a session.
    BindConnToSession = 41, "BIND_CONN_TO_SESSION", 1, BindConnToSessionArgs => Result<BindConnToSessionOk, Status>;
    /// Negotiate a client id.
    ExchangeId = 42, "EXCHANGE_ID", 1, ExchangeIdArgs => Result<ExchangeIdOk, Status>;
    /// Create a session, and confirm the client id.
    CreateSession = 43, "CREATE_SESSION", 1, CreateSessionArgs => Result<CreateSessionOk, Status>;
    /// Destroy a session.
    DestroySession = 44, "DESTROY_SESSION", 1, DestroySessionArgs => Result<(), Status>;
    /// Free a stateid that has no locks or was revoked.
    FreeStateid = 45, "FREE_STATEID", 1, FreeStateidArgs => Result<(), Status>;
    /// Get a delegation of a directory.
    GetDirDelegation = 46, "GET_DIR_DELEGATION", 1, GetDirDelegationArgs => Result<GetDirDelegationOk, Status>;
    /// Get the address of a device.
    Getdeviceinfo = 47, "GETDEVICEINFO", 1, GetdeviceinfoArgs => Result<GetdeviceinfoOk, GetdeviceinfoFailure>;
    /// Get all devices of a file system.
    Getdevicelist = 48, "GETDEVICELIST", 1, GetdevicelistArgs => Result<GetdevicelistOk, Status>;
    /// Commit writes made by a layout.
    Layoutcommit = 49, "LAYOUTCOMMIT", 1, LayoutcommitArgs => Result<LayoutcommitOk, Status>;
    /// Get a layout.
    Layoutget = 50, "LAYOUTGET", 1, LayoutgetArgs => Result<LayoutgetOk, LayoutgetFailure>;
    /// Return a layout.
    Layoutreturn = 51, "LAYOUTRETURN", 1, LayoutreturnArgs => Result<LayoutreturnOk, Status>;
    /// Get the security flavors for the current handle.
    SecinfoNoName = 52, "SECINFO_NO_NAME", 1, SecinfoStyle => Result<SecinfoOk, Status>;
    /// Name the session and slot of a compound.
    Sequence = 53, "SEQUENCE", 1, SequenceArgs => Result<SequenceOk, Status>;
    /// Change the SSV.
    SetSsv = 54, "SET_SSV", 1, SetSsvArgs => Result<SetSsvOk, Status>;
    /// Test stateids.
    TestStateid = 55, "TEST_STATEID", 1, TestStateidArgs => Result<TestStateidOk, Status>;
    /// Request a delegation without an open.
    WantDelegation = 56, "WANT_DELEGATION", 1, WantDelegationArgs => Result<OpenDelegation, Status>;
    /// Destroy a client id.
    DestroyClientid = 57, "DESTROY_CLIENTID", 1, DestroyClientidArgs => Result<(), Status>;
    /// Report that the client will reclaim nothing more.
    ReclaimComplete = 58, "RECLAIM_COMPLETE", 1, ReclaimCompleteArgs => Result<(), Status>;
    /// Reserve space.
    Allocate = 59, "ALLOCATE", 2, AllocateArgs => Result<(), Status>;
    /// Copy a range.
    Copy = 60, "COPY", 2, CopyArgs => Result<CopyOk, CopyFailure>;
    /// Announce a copy by another server.
    CopyNotify = 61, "COPY_NOTIFY", 2, CopyNotifyArgs => Result<CopyNotifyOk, Status>;
    /// Free space.
    Deallocate = 62, "DEALLOCATE", 2, AllocateArgs => Result<(), Status>;
    /// Announce future I/O.
    IoAdvise = 63, "IO_ADVISE", 2, IoAdviseArgs => Result<IoAdviseOk, Status>;
    /// Report errors of I/O through a layout.
    Layouterror = 64, "LAYOUTERROR", 2, LayouterrorArgs => Result<(), Status>;
    /// Report I/O through a layout.
    Layoutstats = 65, "LAYOUTSTATS", 2, LayoutstatsArgs => Result<(), Status>;
    /// Stop an offload.
    OffloadCancel = 66, "OFFLOAD_CANCEL", 2, OffloadArgs => Result<(), Status>;
    /// Get the progress of an offload.
    OffloadStatus = 67, "OFFLOAD_STATUS", 2, OffloadArgs => Result<OffloadStatusOk, Status>;
    /// Read data and holes.
    ReadPlus = 68, "READ_PLUS", 2, ReadPlusArgs => Result<ReadPlusOk, Status>;
    /// Find the next data or hole.
    Seek = 69, "SEEK", 2, SeekArgs => Result<SeekOk, Status>;
    /// Write a pattern many times.
    WriteSame = 70, "WRITE_SAME", 2, WriteSameArgs => Result<WriteResponse, Status>;
    /// Share a range's blocks.
    Clone = 71, "CLONE", 2, CloneArgs => Result<(), Status>;
    /// Get an extended attribute.
    Getxattr = 72, "GETXATTR", 2, XattrArgs => Result<GetxattrOk, Status>;
    /// Set an extended attribute.
    Setxattr = 73, "SETXATTR", 2, SetxattrArgs => Result<XattrChangedOk, Status>;
    /// List extended attributes.
    Listxattrs = 74, "LISTXATTRS", 2, ListxattrsArgs => Result<ListxattrsOk, Status>;
    /// Remove an extended attribute.
    Removexattr = 75, "REMOVEXATTR", 2, XattrArgs => Result<XattrChangedOk, Status>;
}

impl Operation {
    /// True if the minor version defines the operation. Minor version 1 also defines the operations that it
    /// dropped; the reply to them is NOTSUPP.
    pub const fn is_known_in(self, minorversion: u32) -> bool {
        self.minor() <= minorversion && !matches!(self, Operation::Illegal)
    }

    /// True for operations of minor version 0 only (RFC 8881, section 17, "mandatory not to implement").
    pub const fn is_minor0_only(self) -> bool {
        matches!(
            self,
            Operation::OpenConfirm
                | Operation::Renew
                | Operation::Setclientid
                | Operation::SetclientidConfirm
                | Operation::ReleaseLockowner
        )
    }
}
