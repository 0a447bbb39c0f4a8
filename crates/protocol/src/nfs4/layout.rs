//! Layouts and devices, with opaque bodies (RFC 8881, sections 18.40 to 18.44; RFC 7862, sections 15.6 and
//! 15.7).

use xdr::{List, Opaque, Xdr};

use super::{BODY_MAX, Bitmap, Deviceid, Nfstime, Outcome, Stateid, Verifier};

/// A body that is defined by its layout type.
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
    /// An undefined value: BADIOMODE.
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
    /// The most bytes in the reply.
    pub maxcount: u32,
    /// Requested numbers of `notify_deviceid_type4`.
    pub notify_types: Bitmap,
}

/// `GETDEVICEINFO4resok`, with `device_addr4` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetdeviceinfoOk {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `da_addr_body`
    pub addr_body: LayoutBody,
    /// Numbers of `notify_deviceid_type4` that the server will send.
    pub notification: Bitmap,
}

super::table::failure_with_body! {
    /// The error of GETDEVICEINFO.
    GetdeviceinfoFailure: /// `NFS4ERR_TOOSMALL`: the number of bytes that the reply needs.
    TooSmall(u32)
}

/// `GETDEVICELIST4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetdevicelistArgs {
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The most devices.
    pub maxdevices: u32,
    /// Cookie of the device to continue after.
    pub cookie: u64,
    /// The verifier from the first reply.
    pub cookieverf: Verifier,
}

/// `GETDEVICELIST4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GetdevicelistOk {
    /// Cookie for continuing.
    pub cookie: u64,
    /// The client returns it together with the cookie.
    pub cookieverf: Verifier,
    /// The devices.
    pub deviceid_list: List<Deviceid, 1024>,
    /// True if there are no more devices.
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
    /// The commit is a reclaim after the server's restart.
    pub reclaim: bool,
    /// The layout.
    pub stateid: Stateid,
    /// `newoffset4`: the last byte written.
    pub last_write_offset: Option<u64>,
    /// `newtime4`: the time of the last write.
    pub time_modify: Option<Nfstime>,
    /// Data specific to the layout type.
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
    /// If there is no layout now, the client wants CB_RECALLABLE_OBJ_AVAIL.
    pub signal_layout_avail: bool,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The I/O mode.
    pub iomode: LayoutIomode,
    /// First byte.
    pub offset: u64,
    /// Number of bytes requested.
    pub length: u64,
    /// The least number of bytes that is useful.
    pub minlength: u64,
    /// The layout, or the open.
    pub stateid: Stateid,
    /// The most bytes in the reply.
    pub maxcount: u32,
}

/// `LAYOUTGET4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutgetOk {
    /// The client must return the layout at the last CLOSE.
    pub return_on_close: bool,
    /// The layout.
    pub stateid: Stateid,
    /// Its segments.
    pub layout: List<Layout, 256>,
}

/// `layout4`, with `layout_content4` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Layout {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The I/O mode.
    pub iomode: LayoutIomode,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// `loc_body`
    pub body: LayoutBody,
}

super::table::failure_with_body! {
    /// The error of LAYOUTGET.
    LayoutgetFailure: /// `NFS4ERR_LAYOUTTRYLATER`: whether the server will send CB_RECALLABLE_OBJ_AVAIL.
    LayoutTryLater(bool)
}

/// `LAYOUTRETURN4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutreturnArgs {
    /// The return is a reclaim after the server's restart.
    pub reclaim: bool,
    /// Number of `layouttype4`.
    pub layout_type: u32,
    /// The I/O mode.
    pub iomode: LayoutIomode,
    /// The layouts to return.
    pub layoutreturn: LayoutReturn,
}

/// `layoutreturn4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum LayoutReturn {
    /// `LAYOUTRETURN4_FILE`
    #[xdr(case = 1)]
    File(LayoutreturnFile),
    /// `LAYOUTRETURN4_FSID`: all layouts of the current file system.
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
    /// Data specific to the layout type.
    pub body: LayoutBody,
}

/// The result of LAYOUTRETURN: `layoutreturn_stateid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LayoutreturnOk {
    /// The remaining part of the layout.
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
    /// The errors.
    pub errors: List<DeviceError, 256>,
}

/// `device_error4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DeviceError {
    /// The device.
    pub deviceid: Deviceid,
    /// The error of the device.
    pub status: Outcome,
    /// The number of the operation that failed.
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
    /// Data specific to the layout type.
    pub layoutupdate: LayoutUpdate,
}

/// `io_info4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct IoInfo {
    /// Number of operations.
    pub count: u64,
    /// Total number of bytes.
    pub bytes: u64,
}
