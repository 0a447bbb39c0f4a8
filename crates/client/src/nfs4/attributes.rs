//! GETATTR, SETATTR and ACCESS, and the attributes that other operations return.

use protocol::nfs4::{
    ACCESS4_READ, AccessArgs, ArgFattr, ArgOp, Bitmap, ChangeInfo, CompoundError, Failure, Fattr,
    GetattrArgs, Op, Operation, PutfhArgs, ResOp, Results, SetattrArgs, Stateid, Status as Wire, VerifyArgs,
    op,
};
use vfs::{
    AccessMask, Accessed, Attributes, Caller, FileType, Freshness, Handle, Result, SetAttributes, Share,
    Status, Timestamp, Wcc, WccAttributes, replay,
};

use super::execute::Plan;
use super::state::{self, State, Used};
use super::{Nfs4, Nfs4Client, convert};

/// The expected type of a directory.
pub(super) const DIRECTORY: Option<FileType> = Some(FileType::Directory);
/// The expected type of a regular file.
pub(super) const REGULAR: Option<FileType> = Some(FileType::Regular);

/// PUTFH.
pub(super) fn put(handle: &Handle) -> Result<ArgOp> {
    Ok(op::Putfh::with(PutfhArgs { object: convert::to_wire(handle)? }))
}

/// GETATTR.
pub(super) fn getattr(attr_request: Bitmap) -> ArgOp {
    op::Getattr::with(GetattrArgs { attr_request })
}

/// GETATTR of all attributes of the interface.
pub(super) fn getattr_all() -> ArgOp {
    getattr(convert::ATTRIBUTES)
}

/// The first operation for a caller whose request counts as an open. An origin may be a Leasehold proxy. To
/// answer operations after an ACCESS for reading only, such a proxy asks its own origin. It answers a lone
/// GETATTR, and a LOOKUP under a lease of the directory, like a `stat`, from attribute timeouts.
pub(super) fn confirming(caller: &Caller) -> Option<ArgOp> {
    let access = || op::Access::with(AccessArgs { access: ACCESS4_READ });
    (caller.freshness == Freshness::Open).then(access)
}

/// Do the attributes of a directory that came with an OPEN reflect the origin at that moment? The OPEN
/// created nothing. A proxy that has not asked its origin about the directory reports that it may have
/// changed. A proxy that has asked reports the change attribute.
pub(super) fn is_confirmed(cinfo: ChangeInfo, told: Option<&Attributes>) -> bool {
    let ChangeInfo { before, after, .. } = cinfo;
    before == after && (after == 0 || told.is_none_or(|told| told.change == after))
}

/// A directory around an operation, as far as the compound has reported it.
pub(super) struct Around {
    pub(super) before: Option<WccAttributes>,
    pub(super) cinfo: ChangeInfo,
}

impl Around {
    /// Adds the attributes from after the operation. If changes overlap, the two states belong to other
    /// moments, and only `change_info4` is valid.
    pub(super) fn with(&self, after: Option<Attributes>) -> Wcc {
        let change = after.map(|after| after.change);
        let before = self.before.filter(|before| state::unchanged(before.change, change, self.cinfo));
        let ChangeInfo { atomic, before: from, after: to } = self.cinfo;
        let change = atomic.then_some(vfs::ChangeInfo { before: from, after: to });
        Wcc { before, after, change }
    }
}

impl Nfs4 {
    pub(super) async fn change_attributes(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        match self.inner.set_attributes(caller, handle, set, guard).await {
            (Err(failed), true) => replay::attributes_set(self, caller, handle, set, failed).await,
            (result, _) => result,
        }
    }
}

impl Nfs4Client {
    /// Checks the attributes of a handle. A type or file system that the handle cannot have is nonsense.
    pub(super) fn attributes_of(
        &self,
        operation: Operation,
        handle: &Handle,
        came: &Fattr,
        wanted: Option<FileType>,
    ) -> Result<Attributes> {
        let attributes = convert::attributes(came, &self.ids)
            .map_err(|missing| self.nonsense(operation, format_args!("handle {handle} has no {missing}")))?;
        let found = attributes.file_type;
        if wanted.is_some_and(|wanted| wanted != found) || !self.types.agree(handle, found) {
            let what = format_args!("handle {handle} is a {found:?} all of a sudden");
            return Err(self.nonsense(operation, what));
        }
        if !self.fsids.agree(handle, attributes.fsid) {
            return Err(
                self.nonsense(operation, format_args!("handle {handle} is on another file system now"))
            );
        }
        Ok(attributes)
    }

    /// Takes the result of a GETATTR of all attributes.
    pub(super) fn take_attributes(
        &self,
        results: &mut Results,
        handle: &Handle,
        wanted: Option<FileType>,
    ) -> Result<Attributes> {
        let came = self.take::<op::Getattr>(results)?.obj_attributes;
        self.attributes_of(Operation::Getattr, handle, &came, wanted)
    }

    /// Takes the result of a GETATTR of all attributes after an operation that was executed. If the GETATTR
    /// failed, there are no attributes, and that is no error.
    pub(super) fn attributes_after(
        &self,
        results: &mut Results,
        handle: &Handle,
        wanted: Option<FileType>,
    ) -> Result<Option<Attributes>> {
        match results.take::<op::Getattr>() {
            Ok(came) => {
                self.attributes_of(Operation::Getattr, handle, &came.obj_attributes, wanted).map(Some)
            }
            Err(CompoundError::Failed { .. }) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Takes the result of a GETATTR of the compared attributes, before an operation.
    pub(super) fn take_before(&self, results: &mut Results) -> Result<Option<WccAttributes>> {
        let came = self.take::<op::Getattr>(results)?.obj_attributes;
        Ok(convert::wcc_attributes(&came))
    }

    /// Takes the result of an operation on names in a directory. A symbolic link in its place is `NotDir`.
    pub(super) fn take_in_directory<O: Op<ResOp = ResOp>>(&self, results: &mut Results) -> Result<O::Ok> {
        results.take::<O>().map_err(|error| match error.status() {
            Some(Wire::Symlink) => Status::NotDir.into(),
            _ => self.failed(&error),
        })
    }

    /// Sends GETATTR. If it counts as an open, [`confirming`] comes before it.
    pub(super) async fn get_attributes(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let plan = Plan::reading(Operation::Getattr);
        let build = |_: &State| {
            let mut operations = vec![put(handle)?];
            operations.extend(confirming(caller));
            operations.push(getattr_all());
            Ok((operations, Used::Nothing))
        };
        let mut results = self.run(caller, plan, build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        self.take_confirming(caller, &mut results)?;
        self.take_attributes(&mut results, handle, None)
    }

    /// Takes the result of [`confirming`].
    pub(super) fn take_confirming(&self, caller: &Caller, results: &mut Results) -> Result<()> {
        if confirming(caller).is_some() {
            self.take::<op::Access>(results)?;
        }
        Ok(())
    }

    /// The state id for setting the size of a file.
    fn for_size(state: &State, handle: &Handle) -> (Stateid, Used) {
        if let Some((stateid, used @ Used::Lease(_))) = state.for_io(handle, None, Share::WRITE) {
            return (stateid, used);
        }
        // Use our own open: its share reservation would conflict with an anonymous request.
        state
            .open_for(handle, Share::WRITE)
            .and_then(|id| state.for_io(handle, Some(id), Share::WRITE))
            .unwrap_or((Stateid::ANONYMOUS, Used::Nothing))
    }

    /// Sends SETATTR. The flag is true if a failure may be due to an earlier execution of the same call.
    pub(super) async fn set_attributes(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> (Result<Wcc>, bool) {
        let build = |state: &State| {
            let mut operations = vec![put(handle)?];
            if let Some(ctime) = guard {
                let time_metadata = Some(convert::nfstime(ctime));
                let same = ArgFattr::from(Fattr { time_metadata, ..Fattr::default() });
                operations.push(op::Verify::with(VerifyArgs { obj_attributes: same }));
            }
            let (stateid, used) = match set.size {
                Some(_) => Nfs4Client::for_size(state, handle),
                None => (Stateid::ANONYMOUS, Used::Nothing),
            };
            operations.push(op::Setattr::with(SetattrArgs { stateid, obj_attributes: convert::arg(set) }));
            operations.push(getattr_all());
            Ok((operations, used))
        };
        let ran = match self.run(caller, Plan::changing(Operation::Setattr), build).await {
            Ok(ran) => ran,
            Err(failed) => return (Err(failed), false),
        };
        let mut results = ran.results;
        let done = (|| {
            self.take::<op::Putfh>(&mut results)?;
            if guard.is_some() {
                self.take::<op::Verify>(&mut results)?;
            }
            match results.result::<op::Setattr>().map_err(|error| self.failed(&error))? {
                Ok(_) => {}
                Err(failure) if failure.status() == Wire::AttrNotSupp => return Err(Status::Inval.into()),
                Err(failure) => return Err(super::execute::status_of(&failure).into()),
            }
            Ok(Wcc::seen(self.attributes_after(&mut results, handle, None)?))
        })();
        (done, ran.again)
    }

    pub(super) async fn ask_access(
        &self,
        caller: &Caller,
        handle: &Handle,
        asked: AccessMask,
    ) -> Result<Accessed> {
        let plan = Plan::reading(Operation::Access);
        let access = asked.bits();
        let build = |_: &State| {
            let mut operations = vec![put(handle)?];
            operations.extend(confirming(caller));
            operations.extend([op::Access::with(AccessArgs { access }), getattr_all()]);
            Ok((operations, Used::Nothing))
        };
        let mut results = self.run(caller, plan, build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        self.take_confirming(caller, &mut results)?;
        let ok = self.take::<op::Access>(&mut results)?;
        let granted = AccessMask::from_bits_truncate(ok.access) & asked;
        let attributes = Some(self.take_attributes(&mut results, handle, None)?);
        Ok(Accessed { granted, attributes })
    }
}
