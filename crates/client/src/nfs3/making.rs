//! CREATE, MKDIR, SYMLINK, MKNOD and LINK. Every result has a handle and attributes, even if the origin
//! leaves them out.

use bytes::Bytes;
use protocol::nfs3::{self, call};
use protocol::{Call, Reply};
use vfs::replay::{self, Made};
use vfs::{
    Attributes, Caller, CreateHow, Created, Device, Error, FileType, Handle, Name, Node, Result,
    SetAttributes, Status,
};

use super::{Nfs3, place};
use crate::convert;
use crate::transport::Answered;

type Results = nfs3::Reply<nfs3::CreateOk, nfs3::WccData>;

const DIRECTORY: Option<FileType> = Some(FileType::Directory);

impl Nfs3 {
    pub(super) async fn make_file(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let wire_how = match how {
            CreateHow::Unchecked => nfs3::CreateHow::Unchecked(convert::sattr(set)),
            CreateHow::Guarded => nfs3::CreateHow::Guarded(convert::sattr(set)),
            CreateHow::Exclusive(verifier) => nfs3::CreateHow::Exclusive(verifier),
        };
        let args = nfs3::CreateArgs { location: place(directory, name)?, how: wire_how };
        let mut answer = self.call::<call::Create>(caller, &args).await?;
        // The origin itself recognizes a resent exclusive create by its verifier. If it says that the file
        // belongs to another create, nothing that the client can look up proves it wrong. A wrong guess would
        // give a lock file to two owners.
        answer.again &= !matches!(how, CreateHow::Exclusive(_));
        let made = Made::Node { file_type: FileType::Regular, set };
        let wanted = Some(FileType::Regular);
        let mut created = self.made::<call::Create>(caller, (directory, name), answer, wanted, made).await?;
        if matches!(how, CreateHow::Exclusive(_)) && *set != SetAttributes::default() {
            let followed = self.follow_up(caller, &created.node.handle, set).await;
            // This failure carries the file's attributes, but the operation was on the directory.
            let after = created.directory.after;
            created.node.attributes =
                Some(followed.map_err(|failed| Error::from(failed.status).with(after))?);
        }
        Ok(created)
    }

    /// Sets the attributes after an exclusive create, which carries a verifier in their place. Servers keep
    /// the verifier in the times. Setting mode and owner does not change those; whether to set times is up to
    /// the caller.
    async fn follow_up(&self, caller: &Caller, file: &Handle, set: &SetAttributes) -> Result<Attributes> {
        match self.set_attributes(caller, file, set, None).await?.after {
            Some(after) => Ok(after),
            None => self.get_attributes(caller, file).await,
        }
    }

    pub(super) async fn make_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        let args = nfs3::MkdirArgs { location: place(directory, name)?, attributes: convert::sattr(set) };
        let answer = self.call::<call::Mkdir>(caller, &args).await?;
        let made = Made::Node { file_type: FileType::Directory, set };
        self.made::<call::Mkdir>(caller, (directory, name), answer, DIRECTORY, made).await
    }

    pub(super) async fn make_symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let symlink_data = nfs3::Nfspath::new(Bytes::copy_from_slice(target)).ok_or(Status::NameTooLong)?;
        let symlink_attributes = convert::sattr(set);
        let args = nfs3::SymlinkArgs { location: place(directory, name)?, symlink_attributes, symlink_data };
        let answer = self.call::<call::Symlink>(caller, &args).await?;
        let made = Made::Symlink { target };
        self.made::<call::Symlink>(caller, (directory, name), answer, Some(FileType::Symlink), made).await
    }

    pub(super) async fn make_node(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        (file_type, device): (FileType, Device),
        set: &SetAttributes,
    ) -> Result<Created> {
        let sattr = convert::sattr(set);
        let rdev = nfs3::Specdata { specdata1: device.major, specdata2: device.minor };
        let what = match file_type {
            FileType::Block => nfs3::MknodData::Blk(sattr, rdev),
            FileType::Character => nfs3::MknodData::Chr(sattr, rdev),
            FileType::Socket => nfs3::MknodData::Sock(sattr),
            FileType::Fifo => nfs3::MknodData::Fifo(sattr),
            FileType::Regular | FileType::Directory | FileType::Symlink => return Err(Status::BadType.into()),
        };
        let args = nfs3::MknodArgs { location: place(directory, name)?, what };
        let answer = self.call::<call::Mknod>(caller, &args).await?;
        let made = Made::Node { file_type, set };
        self.made::<call::Mknod>(caller, (directory, name), answer, Some(file_type), made).await
    }

    pub(super) async fn make_link(
        &self,
        caller: &Caller,
        file: &Handle,
        directory: &Handle,
        name: &Name,
    ) -> Result<Created> {
        let args = nfs3::LinkArgs { file: convert::to_wire(file)?, link: place(directory, name)? };
        let answer = self.call::<call::Link>(caller, &args).await?;
        match answer.results {
            Reply::Ok(ok) => {
                let attributes = self.attributes_of::<call::Link>(file, ok.file_attributes, None)?;
                let node = Node { handle: *file, attributes };
                Ok(Created {
                    node,
                    directory: self.wcc_of::<call::Link>(directory, ok.linkdir_wcc, DIRECTORY)?,
                    lease: None,
                })
            }
            Reply::Fail(status, came) => {
                let failed = self.failed(directory, status, came.linkdir_wcc.after);
                if !answer.again {
                    return Err(failed);
                }
                replay::made(self, caller, directory, name, failed, Made::Link { file }).await
            }
        }
    }

    /// Takes the result of a procedure that creates a name.
    async fn made<C: Call>(
        &self,
        caller: &Caller,
        (directory, name): (&Handle, &Name),
        answer: Answered<Results>,
        wanted: Option<FileType>,
        made: Made<'_>,
    ) -> Result<Created> {
        let ok = match self.done(directory, answer.results) {
            Ok(ok) => ok,
            Err(failed) if answer.again => {
                return replay::made(self, caller, directory, name, failed, made).await;
            }
            Err(failed) => return Err(failed),
        };
        let dir_wcc = self.wcc_of::<C>(directory, ok.dir_wcc, DIRECTORY)?;
        let mut node = match ok.obj {
            Some(handle) => self.node::<C>(&handle, ok.obj_attributes, wanted)?,
            None => self.look_up(caller, directory, name.as_bytes()).await?.node,
        };
        if node.attributes.is_none() {
            node.attributes = Some(self.get_attributes(caller, &node.handle).await?);
        }
        if node
            .attributes
            .is_some_and(|attributes| wanted.is_some_and(|wanted| wanted != attributes.file_type))
        {
            return Err(self.nonsense::<C>("it made a file of another type"));
        }
        Ok(Created { node, directory: dir_wcc, lease: None })
    }
}
