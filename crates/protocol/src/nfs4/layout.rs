//! Layouts and devices; their bodies are opaque here (RFC 8881, sections 18.40 to 18.44; RFC 7862, sections 15.6 and
//! 15.7).

use xdr::{List, Opaque, Xdr};

use super::{BODY_MAX, Bitmap, Deviceid, Nfstime, Outcome, Stateid, Verifier};

/// A body that only its layout type can read.
pub type LayoutBody = Opaque<BODY_MAX>;

/// `layoutiomode4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum LayoutIomode {
    /// `LAYOUTIOMODE4_READ`
    #[xdr(case = 1)]
    Read,
    /// `LAYOUTIOMODE4_RW`
    #[xdr(case = 2)]
    Rw,
    /// `LAYOUTIOMODE4_ANY`
    #[xdr(case = 3)]
    Any,
    /// None that there is: BADIOMODE.
    #[xdr(default)]
    Other(u32),
}

/// `GETDEVICEINFO4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetdeviceinfoArgs {
    /// The device.
    pub device_id: Deviceid,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The most bytes in the answer.
    pub maxcount: u32,
    /// Numbers of `notify_deviceid_type4` that are wanted.
    pub notify_types: Bitmap,
}

/// `GETDEVICEINFO4resok`, with `device_addr4` in place.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetdeviceinfoOk {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `da_addr_body`
    pub addr_body: LayoutBody,
    /// Numbers of `notify_deviceid_type4` that will come.
    pub notification: Bitmap,
}

super::table::failure_with_body! {
    /// Why GETDEVICEINFO failed.
    GetdeviceinfoFailure: /// `NFS4ERR_TOOSMALL`: the answer needs so many bytes.
    TooSmall(u32)
}

/// `GETDEVICELIST4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetdevicelistArgs {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The most devices.
    pub maxdevices: u32,
    /// Behind which to go on.
    pub cookie: u64,
    /// That of the first answer.
    pub cookieverf: Verifier,
}

/// `GETDEVICELIST4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetdevicelistOk {
    /// Where to go on.
    pub cookie: u64,
    /// To be given with it.
    pub cookieverf: Verifier,
    /// The devices.
    pub deviceid_list: List<Deviceid, 1024>,
    /// There are no more.
    pub eof: bool,
}

/// `layoutupdate4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutUpdate {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `lou_body`
    pub body: LayoutBody,
}

/// `LAYOUTCOMMIT4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutcommitArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// After the server's restart.
    pub reclaim: bool,
    /// The layout.
    pub stateid: Stateid,
    /// `newoffset4`: the last byte written.
    pub last_write_offset: Option<u64>,
    /// `newtime4`: when.
    pub time_modify: Option<Nfstime>,
    /// What the layout type has to say.
    pub layoutupdate: LayoutUpdate,
}

/// `LAYOUTCOMMIT4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutcommitOk {
    /// `newsize4`
    pub newsize: Option<u64>,
}

/// `LAYOUTGET4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutgetArgs {
    /// CB_RECALLABLE_OBJ_AVAIL is wanted if there is none now.
    pub signal_layout_avail: bool,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// For what.
    pub iomode: LayoutIomode,
    /// First byte.
    pub offset: u64,
    /// Number of bytes wanted.
    pub length: u64,
    /// Number of bytes needed.
    pub minlength: u64,
    /// The layout, or the open.
    pub stateid: Stateid,
    /// The most bytes in the answer.
    pub maxcount: u32,
}

/// `LAYOUTGET4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutgetOk {
    /// The layout goes with the last CLOSE.
    pub return_on_close: bool,
    /// The layout.
    pub stateid: Stateid,
    /// Its segments.
    pub layout: List<Layout, 256>,
}

/// `layout4`, with `layout_content4` in place.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Layout {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// For what.
    pub iomode: LayoutIomode,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `loc_body`
    pub body: LayoutBody,
}

super::table::failure_with_body! {
    /// Why LAYOUTGET failed.
    LayoutgetFailure: /// `NFS4ERR_LAYOUTTRYLATER`: whether CB_RECALLABLE_OBJ_AVAIL will come.
    LayoutTryLater(bool)
}

/// `LAYOUTRETURN4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutreturnArgs {
    /// After the server's restart.
    pub reclaim: bool,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// For what.
    pub iomode: LayoutIomode,
    /// What is returned.
    pub layoutreturn: LayoutReturn,
}

/// `layoutreturn4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum LayoutReturn {
    /// `LAYOUTRETURN4_FILE`
    #[xdr(case = 1)]
    File(LayoutreturnFile),
    /// `LAYOUTRETURN4_FSID`: all of the current file system.
    #[xdr(case = 2)]
    Fsid,
    /// `LAYOUTRETURN4_ALL`
    #[xdr(case = 3)]
    All,
}

/// `layoutreturn_file4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutreturnFile {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The layout.
    pub stateid: Stateid,
    /// What the layout type has to say.
    pub body: LayoutBody,
}

/// The result of LAYOUTRETURN: `layoutreturn_stateid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutreturnOk {
    /// What is left of the layout.
    pub stateid: Option<Stateid>,
}

/// `LAYOUTERROR4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayouterrorArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The layout.
    pub stateid: Stateid,
    /// What went wrong.
    pub errors: List<DeviceError, 256>,
}

/// `device_error4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DeviceError {
    /// The device.
    pub deviceid: Deviceid,
    /// What it answered.
    pub status: Outcome,
    /// To the operation of this number.
    pub opnum: u32,
}

/// `LAYOUTSTATS4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutstatsArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The layout.
    pub stateid: Stateid,
    /// Reads.
    pub read: IoInfo,
    /// Writes.
    pub write: IoInfo,
    /// The device.
    pub deviceid: Deviceid,
    /// What the layout type has to say.
    pub layoutupdate: LayoutUpdate,
}

/// `io_info4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct IoInfo {
    /// How many.
    pub count: u64,
    /// Of how many bytes together.
    pub bytes: u64,
}
