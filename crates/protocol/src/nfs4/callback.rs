//! Callbacks: the program that a client serves (RFC 8881, sections 16.1 and 20; RFC 7862, section 16). The
//! client chooses its program number.

use xdr::{Decoder, List, Opaque, Xdr};

use super::{
    BODY_MAX, BadArguments, Bitmap, CompoundRes, Fattr, Fsid, Handle, LayoutIomode, OPERATIONS_MAX,
    OpenDelegation, Sessionid, StateOwner, Stateid, Status, Tag, WriteResponse,
};

/// Version of the program. The RFC's text says 4 and its XDR says 1. Linux calls version 1 and serves both.
pub const VERSION: u32 = 1;
/// The other version that a client must serve.
pub const VERSION_4: u32 = 4;
/// Procedure `CB_NULL`, with neither arguments nor results.
pub const NULL: u32 = 0;
/// Procedure `CB_COMPOUND`, with [`CbCompoundArgs`] and [`CbCompoundRes`].
pub const COMPOUND: u32 = 1;

super::table::operations! {
    /// `nfs_cb_opnum4`.
    CbOperation, CbArgOp, CbResOp, op;
    /// Get the attributes of a file from the holder of a write delegation.
    Getattr = 3, "CB_GETATTR", 0, CbGetattrArgs => Result<CbGetattrOk, Status>;
    /// Recall a delegation.
    Recall = 4, "CB_RECALL", 0, CbRecallArgs => Result<(), Status>;
    /// Recall layouts.
    Layoutrecall = 5, "CB_LAYOUTRECALL", 1, CbLayoutrecallArgs => Result<(), Status>;
    /// Report changes in a directory.
    Notify = 6, "CB_NOTIFY", 1, CbNotifyArgs => Result<(), Status>;
    /// Grant a delegation that the client wanted.
    PushDeleg = 7, "CB_PUSH_DELEG", 1, CbPushDelegArgs => Result<(), Status>;
    /// Recall any delegations or layouts.
    RecallAny = 8, "CB_RECALL_ANY", 1, CbRecallAnyArgs => Result<(), Status>;
    /// Report that there is capacity for delegations or layouts again.
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL", 1, CbRecallAnyArgs => Result<(), Status>;
    /// Use fewer slots.
    RecallSlot = 10, "CB_RECALL_SLOT", 1, CbRecallSlotArgs => Result<(), Status>;
    /// Name the session and slot of a callback.
    Sequence = 11, "CB_SEQUENCE", 1, CbSequenceArgs => Result<CbSequenceOk, Status>;
    /// Report that wanted delegations will not be granted.
    WantsCancelled = 12, "CB_WANTS_CANCELLED", 1, CbWantsCancelledArgs => Result<(), Status>;
    /// Report that a lock may be available.
    NotifyLock = 13, "CB_NOTIFY_LOCK", 1, CbNotifyLockArgs => Result<(), Status>;
    /// Report changes of devices.
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID", 1, CbNotifyDeviceidArgs => Result<(), Status>;
    /// Report that an offload is complete.
    Offload = 15, "CB_OFFLOAD", 2, CbOffloadArgs => Result<(), Status>;
}

impl CbOperation {
    /// True if the minor version has the operation.
    pub const fn is_known_in(self, minorversion: u32) -> bool {
        self.minor() <= minorversion && !matches!(self, CbOperation::Illegal)
    }
}

/// The start of `CB_COMPOUND4args`. [`CbCompoundHeader::next`] decodes the operations that follow.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbCompoundHeader {
    /// The reply repeats it.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// From SETCLIENTID; without meaning in minor versions 1 and up.
    pub callback_ident: u32,
    /// Number of operations left. It is not bounded and may be more than the message contains.
    pub operations: u32,
}

impl CbCompoundHeader {
    /// The next operation; `None` after the last. An operation that the minor version does not have is
    /// [`CbArgOp::Illegal`]. Nothing follows that or an error, because the start of the next operation is
    /// unknown.
    pub fn next(&mut self, decoder: &mut Decoder) -> Option<Result<CbArgOp, BadArguments<CbOperation>>> {
        self.operations = self.operations.checked_sub(1)?;
        let op = self.decode_op(decoder);
        if matches!(op, Err(_) | Ok(CbArgOp::Illegal(_))) {
            self.operations = 0;
        }
        Some(op)
    }

    fn decode_op(&self, decoder: &mut Decoder) -> Result<CbArgOp, BadArguments<CbOperation>> {
        let bad = |operation| move |error| BadArguments { operation, error };
        let number = decoder.u32().map_err(bad(CbOperation::Illegal))?;
        match CbOperation::from_number(number).filter(|operation| operation.is_known_in(self.minorversion)) {
            Some(operation) => CbArgOp::decode_args(operation, decoder).map_err(bad(operation)),
            None => Ok(CbArgOp::Illegal(number)),
        }
    }
}

/// The complete `CB_COMPOUND4args`.
#[derive(Clone, Debug, Default, PartialEq, Xdr)]
pub struct CbCompoundArgs {
    /// The reply repeats it.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// From SETCLIENTID; without meaning in minor versions 1 and up.
    pub callback_ident: u32,
    /// `argarray`
    pub argarray: List<CbArgOp, OPERATIONS_MAX>,
}

/// The complete `CB_COMPOUND4res`.
pub type CbCompoundRes = CompoundRes<CbResOp>;

/// `CB_GETATTR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbGetattrArgs {
    /// The file.
    pub fh: Handle,
    /// A subset of `change`, `size` and the times.
    pub attr_request: Bitmap,
}

/// `CB_GETATTR4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbGetattrOk {
    /// The requested attributes that the client has.
    pub obj_attributes: Box<Fattr>,
}

/// `CB_RECALL4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallArgs {
    /// The delegation.
    pub stateid: Stateid,
    /// The file will be truncated to zero bytes, so the holder need not write its data.
    pub truncate: bool,
    /// The file.
    pub fh: Handle,
}

/// `CB_LAYOUTRECALL4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbLayoutrecallArgs {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The I/O mode of the layouts.
    pub iomode: LayoutIomode,
    /// The client should not continue I/O with the layout.
    pub changed: bool,
    /// The layouts to recall.
    pub recall: LayoutRecall,
}

/// `layoutrecall4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum LayoutRecall {
    /// `LAYOUTRECALL4_FILE`
    #[xdr(case = 1)]
    File {
        /// The file.
        fh: Handle,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The layout.
        stateid: Stateid,
    },
    /// `LAYOUTRECALL4_FSID`
    #[xdr(case = 2)]
    Fsid(Fsid),
    /// `LAYOUTRECALL4_ALL`
    #[xdr(case = 3)]
    All,
}

/// `notify4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Notify {
    /// Numbers of `notify_type4`, or of `notify_deviceid_type4`.
    pub mask: Bitmap,
    /// The content of each notification, in the order of the numbers.
    pub vals: Opaque<BODY_MAX>,
}

/// `CB_NOTIFY4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbNotifyArgs {
    /// The delegation.
    pub stateid: Stateid,
    /// The directory.
    pub fh: Handle,
    /// The changes.
    pub changes: List<Notify, 1024>,
}

/// `CB_PUSH_DELEG4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbPushDelegArgs {
    /// The file.
    pub fh: Handle,
    /// The delegation.
    pub delegation: OpenDelegation,
}

/// `CB_RECALL_ANY4args` and `CB_RECALLABLE_OBJ_AVAIL4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallAnyArgs {
    /// How many objects the client may keep.
    pub objects_to_keep: u32,
    /// Numbers of the affected types: `RCA4_TYPE_MASK_*`.
    pub type_mask: Bitmap,
}

/// Read delegations.
pub const RCA4_TYPE_MASK_RDATA_DLG: u32 = 0;
/// Write delegations.
pub const RCA4_TYPE_MASK_WDATA_DLG: u32 = 1;
/// Delegations of directories.
pub const RCA4_TYPE_MASK_DIR_DLG: u32 = 2;
/// Layouts of files.
pub const RCA4_TYPE_MASK_FILE_LAYOUT: u32 = 3;
/// Layouts of blocks.
pub const RCA4_TYPE_MASK_BLK_LAYOUT: u32 = 4;

/// `CB_RECALL_SLOT4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallSlotArgs {
    /// The highest slot that the client should use.
    pub target_highest_slotid: u32,
}

/// `CB_SEQUENCE4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbSequenceArgs {
    /// The session.
    pub sessionid: Sessionid,
    /// The next sequence id of the slot.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
    /// The highest slot with an outstanding request.
    pub highest_slotid: u32,
    /// The client should cache the complete reply.
    pub cachethis: bool,
    /// Requests whose replies may still be in flight.
    pub referring_call_lists: List<ReferringCallList, 64>,
}

/// `referring_call_list4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReferringCallList {
    /// The session.
    pub sessionid: Sessionid,
    /// The requests.
    pub referring_calls: List<ReferringCall, 256>,
}

/// `referring_call4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReferringCall {
    /// The sequence id of the slot.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
}

/// `CB_SEQUENCE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbSequenceOk {
    /// As in the request.
    pub sessionid: Sessionid,
    /// As in the request.
    pub sequenceid: u32,
    /// As in the request.
    pub slotid: u32,
    /// The highest slot that the client accepts.
    pub highest_slotid: u32,
    /// The highest slot that the server should use.
    pub target_highest_slotid: u32,
}

/// `CB_WANTS_CANCELLED4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbWantsCancelledArgs {
    /// Cancels wants that are blocked by other holders.
    pub contended_wants_cancelled: bool,
    /// Cancels wants for which the server had no capacity.
    pub resourced_wants_cancelled: bool,
}

/// `CB_NOTIFY_LOCK4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbNotifyLockArgs {
    /// The file.
    pub fh: Handle,
    /// The waiting owner.
    pub lock_owner: StateOwner,
}

/// `CB_NOTIFY_DEVICEID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbNotifyDeviceidArgs {
    /// The changes.
    pub changes: List<Notify, 1024>,
}

/// `CB_OFFLOAD4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbOffloadArgs {
    /// The file that was written.
    pub fh: Handle,
    /// The offload.
    pub stateid: Stateid,
    /// `offload_info4`: the result of the copy; on failure the number of bytes copied.
    pub offload_info: crate::Reply<WriteResponse, Status, u64>,
}
