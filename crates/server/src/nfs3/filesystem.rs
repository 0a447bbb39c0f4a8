//! FSSTAT, FSINFO, PATHCONF (RFC 1813, sections 3.3.18 to 3.3.20).

use protocol::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FsArgs, FsinfoOk, FsstatOk, Nfstime,
    PathconfOk,
};

use super::{DATAGRAM_TRANSFER_MAX_BYTES, TRANSFER_MAX_BYTES};
use crate::shared::{Object, Request};

pub(super) async fn fsstat(request: &Request<'_>, args: FsArgs) -> vfs::Result<FsstatOk> {
    let Object { export, handle, caller } = request.object(&args.object)?;
    let stat = export.fs().fsstat(&caller, &handle).await?;
    Ok(FsstatOk {
        obj_attributes: None,
        tbytes: stat.total_bytes,
        fbytes: stat.free_bytes,
        abytes: stat.available_bytes,
        tfiles: stat.total_files,
        ffiles: stat.free_files,
        afiles: stat.available_files,
        invarsec: stat.invariant_seconds,
    })
}

pub(super) async fn fsinfo(request: &Request<'_>, args: FsArgs) -> vfs::Result<FsinfoOk> {
    let Object { export, handle, caller } = request.described(&args.object).await?;
    let limits = export.fs().limits(&caller, &handle).await?;
    let most = if request.datagram { DATAGRAM_TRANSFER_MAX_BYTES } else { TRANSFER_MAX_BYTES };
    let flag = |holds: bool, bit: u32| if holds { bit } else { 0 };
    Ok(FsinfoOk {
        obj_attributes: None,
        rtmax: most,
        rtpref: most,
        rtmult: 4096,
        wtmax: limits.write_max.min(most),
        wtpref: limits.write_preferred.min(most),
        wtmult: 4096,
        dtpref: limits.readdir_preferred.min(most),
        maxfilesize: limits.file_size_max,
        time_delta: Nfstime {
            seconds: (limits.time_delta_nanoseconds / 1_000_000_000) as u32,
            nseconds: (limits.time_delta_nanoseconds % 1_000_000_000) as u32,
        },
        properties: flag(limits.hard_links, FSF3_LINK)
            | flag(limits.symlinks, FSF3_SYMLINK)
            | flag(limits.homogeneous, FSF3_HOMOGENEOUS)
            | flag(limits.can_set_time, FSF3_CANSETTIME),
    })
}

pub(super) async fn pathconf(request: &Request<'_>, args: FsArgs) -> vfs::Result<PathconfOk> {
    let Object { export, handle, caller } = request.object(&args.object)?;
    let limits = export.fs().limits(&caller, &handle).await?;
    Ok(PathconfOk {
        obj_attributes: None,
        linkmax: limits.link_max,
        name_max: limits.name_max,
        no_trunc: limits.no_trunc,
        chown_restricted: limits.chown_restricted,
        case_insensitive: limits.case_insensitive,
        case_preserving: limits.case_preserving,
    })
}
