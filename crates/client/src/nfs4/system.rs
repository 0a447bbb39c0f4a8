//! Space and limits: GETATTR of attributes of the file system.

use std::sync::atomic::Ordering;

use protocol::nfs4::{Attr, Bitmap, Fattr, Operation, op};
use vfs::{Caller, Features, FsLimits, FsStat, Handle, Name, Result, Status};

use super::Nfs4Client;
use super::attributes::{getattr, put};
use super::execute::Plan;
use super::state::{State, Used};

const SPACE: Bitmap = Bitmap::of(&[
    Attr::SpaceTotal,
    Attr::SpaceFree,
    Attr::SpaceAvail,
    Attr::FilesTotal,
    Attr::FilesFree,
    Attr::FilesAvail,
]);

/// The attributes to ask of a file system, and of the root of the export at mount time.
pub(super) const LIMITS: Bitmap = Bitmap::of(&[
    Attr::SupportedAttrs,
    Attr::LinkSupport,
    Attr::SymlinkSupport,
    Attr::LeaseTime,
    Attr::Aclsupport,
    Attr::Cansettime,
    Attr::CaseInsensitive,
    Attr::CasePreserving,
    Attr::ChownRestricted,
    Attr::Homogeneous,
    Attr::Maxfilesize,
    Attr::Maxlink,
    Attr::Maxname,
    Attr::Maxread,
    Attr::Maxwrite,
    Attr::NoTrunc,
    Attr::TimeDelta,
]);

/// Additional attributes of minor version 1.
pub(super) const LIMITS_1: Bitmap = Bitmap::of(&[Attr::SuppattrExclcreat]);
/// Additional attributes of minor version 2.
pub(super) const LIMITS_2: Bitmap = Bitmap::of(&[Attr::XattrSupport]);

/// Features that only minor version 2 has.
const OF_4_2: Features = Features::XATTR
    .union(Features::SEEK)
    .union(Features::ALLOCATE)
    .union(Features::DEALLOCATE)
    .union(Features::COPY)
    .union(Features::CLONE);

impl Nfs4Client {
    async fn ask_file_system(&self, caller: &Caller, handle: &Handle, asked: Bitmap) -> Result<Fattr> {
        let build = |_: &State| Ok((vec![put(handle)?, getattr(asked)], Used::Nothing));
        let mut results = self.run(caller, Plan::reading(Operation::Getattr), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        Ok(*self.take::<op::Getattr>(&mut results)?.obj_attributes)
    }

    pub(super) async fn ask_space(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        let came = self.ask_file_system(caller, handle, SPACE).await?;
        Ok(FsStat {
            total_bytes: came.space_total.unwrap_or(0),
            free_bytes: came.space_free.unwrap_or(0),
            available_bytes: came.space_avail.unwrap_or(0),
            total_files: came.files_total.unwrap_or(0),
            free_files: came.files_free.unwrap_or(0),
            available_files: came.files_avail.unwrap_or(0),
            invariant_seconds: 0,
        })
    }

    /// Asks for the limits. Transfer sizes are those agreed on at mount time, or less on this file system.
    pub(super) async fn ask_limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        // Include the free space, so that a caller that is about to write need not ask for it separately.
        let mut asked = LIMITS | Bitmap::of(&[Attr::SpaceAvail]);
        if self.minor >= 2 {
            asked = asked | LIMITS_2 | (self.export().supported & Bitmap::of(&[Attr::CloneBlksize]));
        }
        let came = self.ask_file_system(caller, handle, asked).await?;
        let export = self.export();
        let up_to = |server: Option<u64>, ours: u32| match server {
            None | Some(0) => ours,
            Some(server) => u32::try_from(server).unwrap_or(u32::MAX).min(ours),
        };
        let usual = FsLimits::default();
        let read_max = up_to(came.maxread, export.read_max);
        let write_max = up_to(came.maxwrite, export.write_max);
        let delta = came.time_delta.map(super::convert::timestamp).map_or(1, vfs::Timestamp::as_nanos);
        Ok(FsLimits {
            read_max,
            read_preferred: read_max,
            write_max,
            write_preferred: write_max,
            readdir_preferred: usual.readdir_preferred.min(export.read_max),
            file_size_max: came.maxfilesize.unwrap_or(usual.file_size_max),
            time_delta_nanoseconds: (delta as u64).max(1),
            hard_links: came.link_support.unwrap_or(usual.hard_links),
            symlinks: came.symlink_support.unwrap_or(usual.symlinks),
            homogeneous: came.homogeneous.unwrap_or(usual.homogeneous),
            can_set_time: came.cansettime.unwrap_or(usual.can_set_time),
            link_max: came.maxlink.unwrap_or(usual.link_max),
            name_max: came.maxname.unwrap_or(usual.name_max).min(Name::MAX as u32),
            no_trunc: came.no_trunc.unwrap_or(usual.no_trunc),
            chown_restricted: came.chown_restricted.unwrap_or(usual.chown_restricted),
            case_insensitive: came.case_insensitive.unwrap_or(usual.case_insensitive),
            case_preserving: came.case_preserving.unwrap_or(usual.case_preserving),
            features: self.features(&came),
            clone_block_bytes: came.clone_blksize,
            available_bytes: came.space_avail,
            concurrent_max: self.slots_max().unwrap_or(usual.concurrent_max),
        })
    }

    fn features(&self, came: &Fattr) -> Features {
        let mut features = Features::STATE | OF_4_2;
        if came.supported_attrs.is_some_and(|supported| supported.contains(Attr::Acl)) {
            features |= Features::ACL;
        }
        if self.minor < 2 {
            features -= OF_4_2;
        }
        if came.xattr_support != Some(true) {
            features -= Features::XATTR;
        }
        features - Features::from_bits_truncate(self.missing.load(Ordering::Relaxed))
    }

    /// Notes that the origin lacks a feature, if its answer says so.
    pub(super) fn learn<T>(&self, feature: Features, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(|failed| failed.status == Status::NotSupp) {
            self.missing.fetch_or(feature.bits(), Ordering::Relaxed);
        }
        result
    }

    /// Fails with `NotSupp` if the origin is known to lack a feature.
    pub(super) fn offers(&self, feature: Features) -> Result<()> {
        let missing = Features::from_bits_truncate(self.missing.load(Ordering::Relaxed));
        let too_old = self.minor < 2 && OF_4_2.contains(feature);
        if too_old || missing.contains(feature) { Err(Status::NotSupp.into()) } else { Ok(()) }
    }
}
