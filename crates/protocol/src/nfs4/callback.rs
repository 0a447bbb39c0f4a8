//! Callbacks: the program that a client serves (RFC 8881, sections 16.1 and 20; RFC 7862, section 16). Its number is
//! the client's choice.

use xdr::{Decoder, List, Opaque, Xdr};

use super::{
    BODY_MAX, BadArguments, Bitmap, CompoundRes, Fattr, Fsid, Handle, LayoutIomode, OPERATIONS_MAX,
    OpenDelegation, Sessionid, StateOwner, Stateid, Status, Tag, WriteResponse,
};

/// Version of the program. The RFC's text says 4 and its XDR says 1: Linux calls 1 and answers both.
pub const VERSION: u32 = 1;
/// The version that a client must answer too.
pub const VERSION_4: u32 = 4;
/// Procedure `CB_NULL`, with neither arguments nor results.
pub const NULL: u32 = 0;
/// Procedure `CB_COMPOUND`, with [`CbCompoundArgs`] and [`CbCompoundRes`].
pub const COMPOUND: u32 = 1;

super::table::operations! {
    /// `nfs_cb_opnum4`.
    CbOperation, CbArgOp, CbResOp, op;
    /// Get what the holder of a write delegation knows of a file.
    Getattr = 3, "CB_GETATTR", 0, CbGetattrArgs => Result<CbGetattrOk, Status>;
    /// Recall a delegation.
    Recall = 4, "CB_RECALL", 0, CbRecallArgs => Result<(), Status>;
    /// Recall layouts.
    Layoutrecall = 5, "CB_LAYOUTRECALL", 1, CbLayoutrecallArgs => Result<(), Status>;
    /// Tell of changes in a directory.
    Notify = 6, "CB_NOTIFY", 1, CbNotifyArgs => Result<(), Status>;
    /// Give a delegation that was wanted.
    PushDeleg = 7, "CB_PUSH_DELEG", 1, CbPushDelegArgs => Result<(), Status>;
    /// Recall any delegations or layouts.
    RecallAny = 8, "CB_RECALL_ANY", 1, CbRecallAnyArgs => Result<(), Status>;
    /// There is room for delegations or layouts again.
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL", 1, CbRecallAnyArgs => Result<(), Status>;
    /// Use fewer slots.
    RecallSlot = 10, "CB_RECALL_SLOT", 1, CbRecallSlotArgs => Result<(), Status>;
    /// Name the session and slot of a callback.
    Sequence = 11, "CB_SEQUENCE", 1, CbSequenceArgs => Result<CbSequenceOk, Status>;
    /// Delegations that were wanted will not come.
    WantsCancelled = 12, "CB_WANTS_CANCELLED", 1, CbWantsCancelledArgs => Result<(), Status>;
    /// A lock may be had now.
    NotifyLock = 13, "CB_NOTIFY_LOCK", 1, CbNotifyLockArgs => Result<(), Status>;
    /// Tell of changes of devices.
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID", 1, CbNotifyDeviceidArgs => Result<(), Status>;
    /// An offload is over.
    Offload = 15, "CB_OFFLOAD", 2, CbOffloadArgs => Result<(), Status>;
}

impl CbOperation {
    /// Does the minor version know it?
    pub const fn is_known_in(self, minorversion: u32) -> bool {
        self.minor() <= minorversion && !matches!(self, CbOperation::Illegal)
    }
}

/// The front of `CB_COMPOUND4args`; the operations follow, to be decoded by [`CbCompoundHeader::next`].
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbCompoundHeader {
    /// Comes back with the results.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// From SETCLIENTID; of no meaning in minor version 1 and up.
    pub callback_ident: u32,
    /// How many operations are still to come. Nothing bounds it: it may promise more than the message has.
    pub operations: u32,
}

impl CbCompoundHeader {
    /// The next operation; `None` behind the last. One that the minor version does not have is
    /// [`CbArgOp::Illegal`]. That and an error are the last, since what follows them cannot be found.
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

/// `CB_COMPOUND4args`, whole.
#[derive(Clone, Debug, Default, PartialEq, Xdr)]
pub struct CbCompoundArgs {
    /// Comes back with the results.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// From SETCLIENTID; of no meaning in minor version 1 and up.
    pub callback_ident: u32,
    /// `argarray`
    pub argarray: List<CbArgOp, OPERATIONS_MAX>,
}

/// `CB_COMPOUND4res`, whole.
pub type CbCompoundRes = CompoundRes<CbResOp>;

/// `CB_GETATTR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbGetattrArgs {
    /// The file.
    pub fh: Handle,
    /// Of `change`, `size` and the times.
    pub attr_request: Bitmap,
}

/// `CB_GETATTR4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbGetattrOk {
    /// Those of them that there are.
    pub obj_attributes: Box<Fattr>,
}

/// `CB_RECALL4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallArgs {
    /// The delegation.
    pub stateid: Stateid,
    /// The file will be truncated to nothing: its data need not be written.
    pub truncate: bool,
    /// The file.
    pub fh: Handle,
}

/// `CB_LAYOUTRECALL4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbLayoutrecallArgs {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// For what.
    pub iomode: LayoutIomode,
    /// I/O by the layout should not go on.
    pub changed: bool,
    /// What is recalled.
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
    /// Of each, in the order of the numbers, what it has to say.
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
    /// How many the client may keep.
    pub objects_to_keep: u32,
    /// `RCA4_TYPE_MASK_*`: numbers of what is meant.
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
    /// The slot's next.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
    /// The highest slot with a request outstanding.
    pub highest_slotid: u32,
    /// The whole reply is to be cached.
    pub cachethis: bool,
    /// Requests whose replies may be on the way still.
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
    /// The slot's.
    pub sequenceid: u32,
    /// The slot.
    pub slotid: u32,
}

/// `CB_SEQUENCE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbSequenceOk {
    /// As given.
    pub sessionid: Sessionid,
    /// As given.
    pub sequenceid: u32,
    /// As given.
    pub slotid: u32,
    /// The highest slot that the client will take.
    pub highest_slotid: u32,
    /// The highest slot that the server should use.
    pub target_highest_slotid: u32,
}

/// `CB_WANTS_CANCELLED4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbWantsCancelledArgs {
    /// Those that others are in the way of.
    pub contended_wants_cancelled: bool,
    /// Those that there was no room for.
    pub resourced_wants_cancelled: bool,
}

/// `CB_NOTIFY_LOCK4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbNotifyLockArgs {
    /// The file.
    pub fh: Handle,
    /// The owner that waits.
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
    /// `offload_info4`: what was copied; on failure how many bytes.
    pub offload_info: crate::Reply<WriteResponse, Status, u64>,
}
