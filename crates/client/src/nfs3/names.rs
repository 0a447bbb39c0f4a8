//! LOOKUP, READLINK, REMOVE, RMDIR and RENAME.

use bytes::Bytes;
use protocol::nfs3::{self, call};
use protocol::{Call, Reply};
use vfs::{Attributes, Caller, FileType, Handle, Looked, Name, Node, Renamed, Result, Wcc, replay};

use super::{Nfs3, place};
use crate::convert;

const DIRECTORY: Option<FileType> = Some(FileType::Directory);

impl Nfs3 {
    pub(super) async fn look_up(&self, caller: &Caller, directory: &Handle, name: &[u8]) -> Result<Looked> {
        let name = nfs3::Filename::new(Bytes::copy_from_slice(name)).unwrap_or_default();
        let args = nfs3::LookupArgs { what: nfs3::DirOpArgs { dir: convert::to_wire(directory)?, name } };
        let ok = self.succeeded(directory, self.call::<call::Lookup>(caller, &args).await?.results)?;
        let node = self.node::<call::Lookup>(&ok.object, ok.obj_attributes, None)?;
        let directory = self.attributes_of::<call::Lookup>(directory, ok.dir_attributes, DIRECTORY)?;
        Ok(Looked { node, directory, directory_lease: None })
    }

    pub(super) async fn look_up_parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        if *directory == self.root {
            // Objects above the root of the export stay hidden.
            let attributes = Some(self.get_attributes(caller, directory).await?);
            return Ok(Looked {
                node: Node { handle: *directory, attributes },
                directory: attributes,
                directory_lease: None,
            });
        }
        let looked = self.look_up(caller, directory, b"..").await?;
        if looked.node.attributes.is_some_and(|attributes| !attributes.is_dir()) {
            return Err(self.nonsense::<call::Lookup>("`..` is not a directory"));
        }
        Ok(looked)
    }

    pub(super) async fn read_link(
        &self,
        caller: &Caller,
        handle: &Handle,
    ) -> Result<(Bytes, Option<Attributes>)> {
        let args = nfs3::ReadlinkArgs { symlink: convert::to_wire(handle)? };
        let ok = self.succeeded(handle, self.call::<call::Readlink>(caller, &args).await?.results)?;
        let wanted = Some(FileType::Symlink);
        let attributes = self.attributes_of::<call::Readlink>(handle, ok.symlink_attributes, wanted)?;
        if ok.data.is_empty() || ok.data.contains(&0) {
            return Err(self.nonsense::<call::Readlink>("a target that is empty or has a NUL in it"));
        }
        Ok((ok.data.into_bytes(), attributes))
    }

    /// REMOVE and RMDIR.
    pub(super) async fn remove_name<C>(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc>
    where
        C: Call<Args = nfs3::RemoveArgs, Results = nfs3::Reply<nfs3::RemoveOk, nfs3::WccData>>,
    {
        let answer = self.call::<C>(caller, &nfs3::RemoveArgs { object: place(directory, name)? }).await?;
        match self.done(directory, answer.results) {
            Ok(ok) => self.wcc_of::<C>(directory, ok.dir_wcc, DIRECTORY),
            Err(failed) if answer.again => replay::removed(self, caller, directory, failed).await,
            Err(failed) => Err(failed),
        }
    }

    pub(super) async fn rename_name(
        &self,
        caller: &Caller,
        from: (&Handle, &Name),
        to: (&Handle, &Name),
    ) -> Result<Renamed> {
        let args = nfs3::RenameArgs { from: place(from.0, from.1)?, to: place(to.0, to.1)? };
        let answer = self.call::<call::Rename>(caller, &args).await?;
        match answer.results {
            Reply::Ok(ok) => Ok(Renamed {
                from: self.wcc_of::<call::Rename>(from.0, ok.fromdir_wcc, DIRECTORY)?,
                to: self.wcc_of::<call::Rename>(to.0, ok.todir_wcc, DIRECTORY)?,
            }),
            Reply::Fail(status, came) => {
                let failed = self.failed(from.0, status, came.fromdir_wcc.after);
                if answer.again {
                    replay::renamed(self, caller, from.0, to, None, failed).await
                } else {
                    Err(failed)
                }
            }
        }
    }

    /// The node of a handle that a name leads to, with its attributes if they came.
    pub(super) fn node<C: Call>(
        &self,
        handle: &nfs3::Handle,
        came: Option<nfs3::Fattr>,
        wanted: Option<FileType>,
    ) -> Result<Node> {
        let handle = convert::from_wire(handle).ok_or_else(|| self.nonsense::<C>("an empty handle"))?;
        Ok(Node { handle, attributes: self.attributes_of::<C>(&handle, came, wanted)? })
    }
}
