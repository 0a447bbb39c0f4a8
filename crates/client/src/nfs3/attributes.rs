//! GETATTR, SETATTR and ACCESS.

use protocol::Reply;
use protocol::nfs3::{self, call};
use vfs::{AccessMask, Accessed, Attributes, Caller, Handle, Result, SetAttributes, Timestamp, Wcc, replay};

use super::Nfs3;
use crate::convert;

impl Nfs3 {
    pub(super) async fn get_attributes(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let args = nfs3::GetattrArgs { object: convert::to_wire(handle)? };
        let came = match self.call::<call::Getattr>(caller, &args).await?.results {
            Reply::Ok(ok) => Some(ok.obj_attributes),
            Reply::Fail(status, ()) => return Err(self.failed(handle, status, None)),
        };
        let attributes = self.attributes_of::<call::Getattr>(handle, came, None)?;
        attributes.ok_or_else(|| self.nonsense::<call::Getattr>("no attributes"))
    }

    pub(super) async fn set_attributes(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let args = nfs3::SetattrArgs {
            object: convert::to_wire(handle)?,
            new_attributes: convert::sattr(set),
            guard: guard.map(convert::nfstime),
        };
        let answer = self.call::<call::Setattr>(caller, &args).await?;
        match self.done(handle, answer.results) {
            Ok(ok) => self.wcc_of::<call::Setattr>(handle, ok.obj_wcc, None),
            Err(failed) if answer.again => replay::attributes_set(self, caller, handle, set, failed).await,
            Err(failed) => Err(failed),
        }
    }

    pub(super) async fn ask_access(
        &self,
        caller: &Caller,
        handle: &Handle,
        asked: AccessMask,
    ) -> Result<Accessed> {
        let args = nfs3::AccessArgs { object: convert::to_wire(handle)?, access: asked.bits() };
        let ok = self.succeeded(handle, self.call::<call::Access>(caller, &args).await?.results)?;
        let attributes = self.attributes_of::<call::Access>(handle, ok.obj_attributes, None)?;
        // Ignore granted rights that were not asked for.
        Ok(Accessed { granted: AccessMask::from_bits_truncate(ok.access) & asked, attributes })
    }
}
