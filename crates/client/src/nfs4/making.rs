//! CREATE, LINK, and an OPEN that creates a file and closes it at once. Every result has a handle and
//! attributes.

use bytes::Bytes;
use protocol::nfs4::{
    ArgOp, CloseArgs, CompoundError, CreateArgs, Createtype, Ftype, LinkArgs, Linktext,
    OPEN4_SHARE_ACCESS_WANT_NO_DELEG, Op, OpenClaim, Openflag, Operation, Results, Specdata, Stateid, op,
};
use vfs::replay::{self, Made};
use vfs::{
    Attributes, Caller, CreateHow, Created, Device, Error, FileType, Handle, Lease, Name, Node, Owner,
    Result, SetAttributes, Share, Status, Wcc, WccAttributes,
};

use super::attributes::{Around, DIRECTORY, REGULAR, getattr, getattr_all, put};
use super::execute::Plan;
use super::opens::{node, open_args};
use super::state::{State, Used};
use super::{Nfs4, Nfs4Client, convert};

/// What a CREATE has made.
pub(super) struct Fresh {
    /// `None` if the compound did not return it.
    node: Option<Node>,
    directory: Wcc,
    lease: Option<Lease>,
}

impl Nfs4 {
    pub(super) async fn make_file(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let (inner, asker) = (self.inner.clone(), caller.clone());
        let (above, new, first) = (*directory, name.clone(), *set);
        let work = async move { Ok(inner.create_file(&asker, &above, &new, how, &first).await) };
        match self.to_the_end(caller, work, |_, _| {}).await? {
            // The origin itself recognizes a resent exclusive create by its verifier.
            (Err(failed), true) if how == CreateHow::Guarded => {
                let made = Made::Node { file_type: FileType::Regular, set };
                replay::made(self, caller, directory, name, failed, made).await
            }
            (result, _) => result,
        }
    }

    pub(super) async fn make_symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let link = Linktext::new(Bytes::copy_from_slice(target)).ok_or(Status::NameTooLong)?;
        let (what, wanted) = (Createtype::Lnk(link), Some(FileType::Symlink));
        self.make(caller, (directory, name), what, wanted, (set, Made::Symlink { target })).await
    }

    pub(super) async fn make_node(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        (file_type, device): (FileType, Device),
        set: &SetAttributes,
    ) -> Result<Created> {
        let rdev = Specdata { specdata1: device.major, specdata2: device.minor };
        let what = match file_type {
            FileType::Block => Createtype::Blk(rdev),
            FileType::Character => Createtype::Chr(rdev),
            FileType::Socket => Createtype::Sock,
            FileType::Fifo => Createtype::Fifo,
            FileType::Regular | FileType::Directory | FileType::Symlink => return Err(Status::BadType.into()),
        };
        let made = Made::Node { file_type, set };
        self.make(caller, (directory, name), what, Some(file_type), (set, made)).await
    }

    /// Sends CREATE.
    pub(super) async fn make(
        &self,
        caller: &Caller,
        (directory, name): (&Handle, &Name),
        what: Createtype,
        wanted: Option<FileType>,
        (set, made): (&SetAttributes, Made<'_>),
    ) -> Result<Created> {
        let set = SetAttributes { size: None, ..*set };
        let build = |_: &State| {
            let create = CreateArgs {
                objtype: what.clone(),
                objname: convert::component(name),
                createattrs: convert::arg(&set),
            };
            let operations = vec![
                put(directory)?,
                getattr(convert::BEFORE),
                op::Savefh::with(()),
                op::Create::with(create),
                op::Getfh::with(()),
                getattr_all(),
                op::Restorefh::with(()),
                getattr_all(),
            ];
            Ok((operations, Used::Nothing))
        };
        let ran = self.inner.run(caller, Plan::changing(Operation::Create), build).await?;
        let fresh = match self.inner.created(ran.results, directory, wanted, |_, _| None) {
            Ok(fresh) => fresh,
            Err(failed) if ran.again => {
                return replay::made(self, caller, directory, name, failed, made).await;
            }
            Err(failed) => return Err(failed),
        };
        self.inner.fill_in(caller, (directory, name), fresh).await
    }

    pub(super) async fn make_link(
        &self,
        caller: &Caller,
        file: &Handle,
        directory: &Handle,
        name: &Name,
    ) -> Result<Created> {
        let build = |_: &State| {
            let operations = vec![
                put(file)?,
                op::Savefh::with(()),
                put(directory)?,
                getattr(convert::BEFORE),
                op::Link::with(LinkArgs { newname: convert::component(name) }),
                getattr_all(),
                op::Restorefh::with(()),
                getattr_all(),
            ];
            Ok((operations, Used::Nothing))
        };
        let ran = self.inner.run(caller, Plan::changing(Operation::Link), build).await?;
        match self.inner.linked(ran.results, file, directory) {
            Err(failed) if ran.again => {
                replay::made(self, caller, directory, name, failed, Made::Link { file }).await
            }
            result => result,
        }
    }
}

impl Nfs4Client {
    fn take_start(&self, results: &mut Results) -> Result<Option<WccAttributes>> {
        self.take::<op::Putfh>(results)?;
        let before = self.take_before(results)?;
        self.take::<op::Savefh>(results)?;
        Ok(before)
    }

    /// Takes the results of CREATE. `between` takes those of operations on the new object.
    pub(super) fn created(
        &self,
        mut results: Results,
        directory: &Handle,
        wanted: Option<FileType>,
        between: impl FnOnce(&mut Results, &Handle) -> Option<(Lease, Attributes)>,
    ) -> Result<Fresh> {
        let before = self.take_start(&mut results)?;
        let cinfo = self.take_in_directory::<op::Create>(&mut results)?.cinfo;
        if let Err(CompoundError::Failed { .. }) = results.clone().take::<op::Getfh>() {
            return Ok(Fresh { node: None, directory: Wcc::default(), lease: None });
        }
        let handle = self.take_handle(&mut results)?;
        let mut attributes = self.attributes_after(&mut results, &handle, wanted)?;
        let (mut after, mut lease) = (None, None);
        if attributes.is_some() {
            if let Some((given, under)) = between(&mut results, &handle) {
                (lease, attributes) = (Some(given), Some(under));
            }
            if results.take::<op::Restorefh>().is_ok() {
                let told = self.attributes_after(&mut results, directory, DIRECTORY);
                after = told.inspect_err(|_| {
                    if let Some(lease) = &lease {
                        self.return_soon(lease.id);
                    }
                })?;
            }
        }
        let node = Some(Node { handle, attributes });
        Ok(Fresh { node, directory: Around { before, cinfo }.with(after), lease })
    }

    /// Asks for what the compound did not return.
    pub(super) async fn fill_in(
        &self,
        caller: &Caller,
        (directory, name): (&Handle, &Name),
        fresh: Fresh,
    ) -> Result<Created> {
        let mut node = match fresh.node {
            Some(node) => node,
            None => self.look_up(caller, directory, Some(name)).await?.node,
        };
        if node.attributes.is_none() {
            node.attributes = Some(self.get_attributes(caller, &node.handle).await?);
        }
        Ok(Created { node, directory: fresh.directory, lease: fresh.lease })
    }

    fn linked(&self, mut results: Results, file: &Handle, directory: &Handle) -> Result<Created> {
        self.take::<op::Putfh>(&mut results)?;
        self.take::<op::Savefh>(&mut results)?;
        self.take::<op::Putfh>(&mut results)?;
        let before = self.take_before(&mut results)?;
        let cinfo = self.take_in_directory::<op::Link>(&mut results)?.cinfo;
        let after = self.attributes_after(&mut results, directory, DIRECTORY)?;
        let mut node = Node { handle: *file, attributes: None };
        if results.take::<op::Restorefh>().is_ok() {
            node.attributes = self.attributes_after(&mut results, file, None)?;
        }
        Ok(Created { node, directory: Around { before, cinfo }.with(after), lease: None })
    }

    fn create_operations(
        &self,
        directory: &Handle,
        name: &Name,
        owner: &Owner,
        (how, set): (CreateHow, &SetAttributes),
    ) -> Result<Vec<ArgOp>> {
        // Open an existing file only with the access that the request needs.
        let access = if set.size.is_some() { Share::WRITE } else { Share::READ };
        let openhow = Openflag::Create(self.create_how(how, set));
        let claim = OpenClaim::Null(convert::component(name));
        let open = open_args(owner, access.into(), OPEN4_SHARE_ACCESS_WANT_NO_DELEG, openhow, claim);
        Ok(vec![
            put(directory)?,
            getattr(convert::BEFORE_OPEN),
            op::Savefh::with(()),
            op::Open::with(open),
            op::Getfh::with(()),
            getattr_all(),
            op::Close::with(CloseArgs { seqid: 0, open_stateid: Stateid::CURRENT }),
            op::Restorefh::with(()),
            getattr_all(),
        ])
    }

    /// Sends OPEN and CLOSE in one compound. The flag is true if a failure may be due to an earlier
    /// execution.
    async fn create_file(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> (Result<Created>, bool) {
        // Use an owner of its own, so that CLOSE closes no other open.
        let owner = self.back.passing_owner();
        let build =
            |_: &State| Ok((self.create_operations(directory, name, &owner, (how, set))?, Used::Nothing));
        let ran = match self.run(caller, Plan::stateful(Operation::Open), build).await {
            Ok(ran) => ran,
            Err(failed) => return (Err(failed), false),
        };
        let again = ran.again;
        (self.file_created(caller, directory, ran.results, (how, set)).await, again)
    }

    async fn file_created(
        &self,
        caller: &Caller,
        directory: &Handle,
        mut results: Results,
        (how, set): (CreateHow, &SetAttributes),
    ) -> Result<Created> {
        self.take::<op::Putfh>(&mut results)?;
        let above = self.take::<op::Getattr>(&mut results)?.obj_attributes;
        self.take::<op::Savefh>(&mut results)?;
        let before = convert::wcc_attributes(&above);
        let ok = self.take::<op::Open>(&mut results).map_err(|failed| {
            let in_a_file = above.ftype.is_some_and(|ftype| ftype != Ftype::Dir);
            if in_a_file && failed.status == Status::Inval { Status::NotDir.into() } else { failed }
        })?;
        let handle = self.take_handle(&mut results)?;
        let mut attributes = self.attributes_after(&mut results, &handle, REGULAR)?;
        // The origin granted a delegation although we asked for none.
        if let Some(given) = self.delegated(&handle, &caller.principal, &ok.delegation, vfs::Want::None) {
            self.return_soon(given.id);
        }
        if attributes.is_none() || results.take::<op::Close>().is_err() {
            self.close_named(caller, handle, ok.stateid).await?;
        }
        let mut after = None;
        if results.take::<op::Restorefh>().is_ok() {
            after = self.attributes_after(&mut results, directory, DIRECTORY)?;
        }
        if let Some(left) = self.left_to_set(how, set) {
            let followed = self.set_attributes(caller, &handle, &left, None).await.0;
            // This failure carries the file's attributes, but the operation was on the directory.
            attributes = followed.map_err(|failed| Error::from(failed.status).with(after))?.after;
        }
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.get_attributes(caller, &handle).await?,
        };
        Ok(Created {
            node: node(handle, attributes),
            directory: Around { before, cinfo: ok.cinfo }.with(after),
            lease: None,
        })
    }

    /// Closes an open that was never in the table.
    async fn close_named(&self, caller: &Caller, handle: Handle, open_stateid: Stateid) -> Result<()> {
        let build = |_: &State| {
            let close = op::Close::with(CloseArgs { seqid: 0, open_stateid });
            Ok((vec![put(&handle)?, close], Used::Nothing))
        };
        self.run(caller, Plan::stateful(Operation::Close), build).await.map(|_| ())
    }
}
