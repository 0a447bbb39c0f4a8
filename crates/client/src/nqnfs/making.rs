//! CREATE, MKDIR and SYMLINK.
//!
//! CREATE of version 2 accepts an existing file, so a guarded create begins with a LOOKUP. If two clients
//! create the same name at the same time, both may believe that they created it.

use std::sync::Arc;

use bytes::Bytes;
use protocol::nqnfs::{self, CreateArgs, Path, Sattr, SymlinkArgs, call};
use vfs::{
    Caller, CreateHow, Created, Device, FileType, Handle, LeaseKind, Name, Node, Result, SetAttributes,
    Status, Wcc,
};

use super::{NqnfsClient, convert, plain};

/// The mode of a new file if the caller gives none.
const MODE: u32 = 0o644;

impl NqnfsClient {
    pub(super) async fn make_file(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        if how != CreateHow::Unchecked {
            self.must_not_be_there(caller, directory, name).await?;
        }
        let ok =
            self.call::<call::Create, _, _>(caller, &plain(arguments(directory, name, set)?)).await?.results;
        self.made(&ok)
    }

    pub(super) async fn make_node(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        (file_type, device): (FileType, Device),
        set: &SetAttributes,
    ) -> Result<Created> {
        let (format, size) = convert::special(file_type, device).ok_or(Status::BadType)?;
        self.must_not_be_there(caller, directory, name).await?;
        let mode = set.mode.unwrap_or(MODE) & 0o7777 | format;
        self.create(caller, directory, name, Sattr { mode, size, ..convert::sattr(set) }).await
    }

    pub(super) async fn must_not_be_there(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
    ) -> Result<()> {
        match self.look_up(caller, directory, name.as_bytes()).await {
            Ok(_) => Err(Status::Exist.into()),
            Err(error) if error.status == Status::NoEnt => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        attributes: Sattr,
    ) -> Result<Created> {
        let args = CreateArgs { location: convert::place(directory, name)?, attributes };
        let ok = self.call::<call::Create, _, _>(caller, &plain(args)).await?.results;
        self.made(&ok)
    }

    pub(super) async fn make_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        let args = CreateArgs { location: convert::place(directory, name)?, attributes: convert::sattr(set) };
        let ok = self.call::<call::Mkdir, _, _>(caller, &plain(args)).await?.results;
        self.made(&ok)
    }

    /// The same, with a lease on the new directory. Granting it, the server says that the creator has all
    /// rights there, and that the directory is empty under the lease (docs/nqnfs.md).
    pub(super) async fn make_leased_directory(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        let args = CreateArgs { location: convert::place(directory, name)?, attributes: convert::sattr(set) };
        let made = self.make_with_lease::<call::Mkdir>(caller, args, LeaseKind::Read).await?;
        let node = Node { handle: made.handle, attributes: Some(made.attributes) };
        Ok(Created { node, directory: Wcc::default(), lease: made.lease })
    }

    pub(super) async fn make_symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let to = Path::new(Bytes::copy_from_slice(target)).ok_or(Status::NameTooLong)?;
        let args =
            SymlinkArgs { from: convert::place(directory, name)?, to, attributes: convert::sattr(set) };
        self.call::<call::Symlink, _, _>(caller, &plain(args)).await?;
        // The answer has no handle.
        let node = self.look_up(caller, directory, name.as_bytes()).await?.node;
        Ok(Created { node, directory: Wcc::default(), lease: None })
    }

    fn made(&self, ok: &nqnfs::DirOpOk) -> Result<Created> {
        let handle = convert::from_wire(&ok.file)?;
        let attributes = Some(self.learn(&handle, &ok.attributes));
        Ok(Created { node: Node { handle, attributes }, directory: Wcc::default(), lease: None })
    }
}

/// The arguments of a CREATE of a regular file.
pub(super) fn arguments(directory: &Handle, name: &Name, set: &SetAttributes) -> Result<CreateArgs> {
    let mut attributes = convert::sattr(set);
    if set.mode.is_none() {
        attributes.mode = MODE;
    }
    attributes.mode |= 0o100_000;
    Ok(CreateArgs { location: convert::place(directory, name)?, attributes })
}
