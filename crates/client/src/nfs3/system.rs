//! FSSTAT, and FSINFO with PATHCONF.

use protocol::nfs3::{self, call};
use vfs::{Caller, Features, FsLimits, FsStat, Handle, Name, Result};

use super::Nfs3;
use crate::convert;

impl Nfs3 {
    pub(super) async fn ask_space(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        let args = nfs3::FsArgs { object: convert::to_wire(handle)? };
        let ok = self.succeeded(handle, self.call::<call::Fsstat>(caller, &args).await?.results)?;
        self.attributes_of::<call::Fsstat>(handle, ok.obj_attributes, None)?;
        Ok(FsStat {
            total_bytes: ok.tbytes,
            free_bytes: ok.fbytes,
            available_bytes: ok.abytes,
            total_files: ok.tfiles,
            free_files: ok.ffiles,
            available_files: ok.afiles,
            invariant_seconds: ok.invarsec,
        })
    }

    /// Asks for the limits. Transfer sizes are those agreed on at mount time, or less on this file system.
    pub(super) async fn ask_limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        let args = nfs3::FsArgs { object: convert::to_wire(handle)? };
        let (info, path) = tokio::try_join!(
            self.call::<call::Fsinfo>(caller, &args),
            self.call::<call::Pathconf>(caller, &args)
        )?;
        let info = self.succeeded(handle, info.results)?;
        let path = self.succeeded(handle, path.results)?;
        let up_to = |server: u32, ours: u32| if server == 0 { ours } else { server.min(ours) };
        let read_max = up_to(info.rtmax, self.sizes.read);
        let write_max = up_to(info.wtmax, self.sizes.write);
        let delta = convert::timestamp(info.time_delta).as_nanos();
        Ok(FsLimits {
            read_max,
            read_preferred: up_to(info.rtpref, read_max),
            write_max,
            write_preferred: up_to(info.wtpref, write_max),
            readdir_preferred: up_to(info.dtpref, self.sizes.readdir),
            file_size_max: info.maxfilesize,
            time_delta_nanoseconds: (delta as u64).max(1),
            hard_links: info.properties & nfs3::FSF3_LINK != 0,
            symlinks: info.properties & nfs3::FSF3_SYMLINK != 0,
            homogeneous: info.properties & nfs3::FSF3_HOMOGENEOUS != 0,
            can_set_time: info.properties & nfs3::FSF3_CANSETTIME != 0,
            link_max: path.linkmax,
            // Ganesha says 1024, but the layer above never sends longer names than ours.
            name_max: path.name_max.min(Name::MAX as u32),
            no_trunc: path.no_trunc,
            chown_restricted: path.chown_restricted,
            case_insensitive: path.case_insensitive,
            case_preserving: path.case_preserving,
            features: if self.locks.is_some() { Features::LOCKS_ALONE } else { Features::empty() },
            clone_block_bytes: None,
            available_bytes: None,
            concurrent_max: FsLimits::default().concurrent_max,
        })
    }
}
