//! LOOKUP, LOOKUPP, READLINK, REMOVE and RENAME.

use bytes::Bytes;
use protocol::nfs4::{
    ArgFattr, ArgOp, Fattr, Ftype, LookupArgs, Op, Operation, RemoveArgs, RenameArgs, Results,
    Status as Wire, VerifyArgs, op,
};
use vfs::{
    Attributes, Caller, Error, FileType, Handle, Looked, Name, Node, Renamed, Result, Status, Wcc, replay,
};

use super::attributes::{Around, DIRECTORY, getattr, getattr_all, put};
use super::delegating::{Begun, NotCarriedOut, Piggybacking, WithLease, plain};
use super::execute::Plan;
use super::state::{State, Used};
use super::{Nfs4, Nfs4Client, convert};

/// LOOKUP of a name.
pub(super) fn lookup(name: &Name) -> ArgOp {
    op::Lookup::with(LookupArgs { objname: convert::component(name) })
}

impl Nfs4Client {
    /// Looks up a name in a directory, or the parent if `name` is `None`. The directory's attributes are
    /// those from before the lookup.
    pub(super) async fn look_up(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: Option<&Name>,
    ) -> Result<Looked> {
        plain(self.look_up_once(caller, directory, name, Piggybacking::Never).await)
    }

    /// Looks up a name in a directory, with a piggybacked delegation of the directory.
    pub(super) async fn look_up_delegated(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
    ) -> WithLease<Looked> {
        // A recall may come before the answer.
        let _in_flight = self.back.opening();
        match self.look_up_once(caller, directory, Some(name), self.piggybacking(directory)).await {
            Ok(looked) => looked,
            Err(NotCarriedOut) => WithLease::alone(self.look_up(caller, directory, Some(name)).await),
        }
    }

    async fn look_up_once(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: Option<&Name>,
        piggybacking: Piggybacking,
    ) -> std::result::Result<WithLease<Looked>, NotCarriedOut> {
        let main = if name.is_some() { Operation::Lookup } else { Operation::Lookupp };
        let mut rest =
            vec![name.map_or_else(|| op::Lookupp::with(()), lookup), op::Getfh::with(()), getattr_all()];
        if piggybacking == Piggybacking::Last {
            match put(directory) {
                Ok(back) => rest.push(back),
                Err(failed) => return Ok(WithLease::alone(Err(failed))),
            }
        }
        rest.extend(piggybacking.last());
        let Begun { mut results, above, lease } =
            match self.begin_in(caller, directory, main, piggybacking, &rest).await? {
                Ok(begun) => begun,
                Err(failed) => return Ok(WithLease::alone(Err(failed))),
            };
        let result = above.and_then(|above| self.looked(&mut results, above, name.is_some()));
        let told =
            result.is_ok() && piggybacking == Piggybacking::Last && results.take::<op::Putfh>().is_ok();
        let last = if told { self.take_last(caller, directory, piggybacking, &mut results) } else { None };
        Ok(WithLease { result, lease: lease.or(last) })
    }

    /// Takes the result of a lookup in a directory with these attributes.
    fn looked(&self, results: &mut Results, above: Attributes, by_name: bool) -> Result<Looked> {
        if !above.is_dir() {
            return Err(Error::from(Status::NotDir).with(Some(above)));
        }
        let looked =
            if by_name { self.take::<op::Lookup>(results) } else { self.take::<op::Lookupp>(results) };
        looked.map_err(|failed| failed.with(Some(above)))?;
        let node = self.take_node(results, None)?;
        Ok(Looked { node, directory: Some(above), directory_lease: None })
    }

    pub(super) async fn look_up_parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        if *directory == self.export().root {
            // Objects above the root of the export stay hidden.
            let attributes = Some(self.get_attributes(caller, directory).await?);
            return Ok(Looked {
                node: Node { handle: *directory, attributes },
                directory: attributes,
                directory_lease: None,
            });
        }
        let looked = self.look_up(caller, directory, None).await?;
        if looked.node.attributes.is_some_and(|attributes| !attributes.is_dir()) {
            return Err(self.nonsense(Operation::Lookupp, "the parent is not a directory"));
        }
        Ok(looked)
    }

    /// Takes the results of GETFH and GETATTR.
    pub(super) fn take_node(&self, results: &mut Results, wanted: Option<FileType>) -> Result<Node> {
        let handle = self.take_handle(results)?;
        let attributes = self.take_attributes(results, &handle, wanted)?;
        Ok(Node { handle, attributes: Some(attributes) })
    }

    /// Takes the result of GETFH.
    pub(super) fn take_handle(&self, results: &mut Results) -> Result<Handle> {
        let object = self.take::<op::Getfh>(results)?.object;
        convert::from_wire(&object).ok_or_else(|| self.nonsense(Operation::Getfh, "an empty handle"))
    }

    pub(super) async fn read_link(
        &self,
        caller: &Caller,
        handle: &Handle,
    ) -> Result<(Bytes, Option<Attributes>)> {
        let plan = Plan::reading(Operation::Readlink);
        let build =
            |_: &State| Ok((vec![put(handle)?, getattr_all(), op::Readlink::with(())], Used::Nothing));
        let mut results = self.run(caller, plan, build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let attributes = self.take_attributes(&mut results, handle, None)?;
        let link = self.take::<op::Readlink>(&mut results)?.link;
        if link.is_empty() || link.contains(&0) {
            return Err(self.nonsense(Operation::Readlink, "a target that is empty or has a NUL in it"));
        }
        Ok((link.into_bytes(), Some(attributes)))
    }
}

/// VERIFY or NVERIFY that the current object is a directory, because REMOVE removes objects of any type.
fn is_directory(wanted: bool) -> ArgOp {
    let obj_attributes = ArgFattr::from(Fattr { ftype: Some(Ftype::Dir), ..Fattr::default() });
    let args = VerifyArgs { obj_attributes };
    if wanted { op::Verify::with(args) } else { op::Nverify::with(args) }
}

impl Nfs4 {
    /// Removes a directory if `is_dir`, and only other objects otherwise.
    pub(super) async fn remove_name(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        is_dir: bool,
    ) -> Result<Wcc> {
        let build = |_: &State| {
            let target = convert::component(name);
            let operations = vec![
                put(directory)?,
                getattr(convert::BEFORE),
                op::Savefh::with(()),
                lookup(name),
                is_directory(is_dir),
                op::Restorefh::with(()),
                op::Remove::with(RemoveArgs { target }),
                getattr_all(),
            ];
            Ok((operations, Used::Nothing))
        };
        let ran = self.inner.run(caller, Plan::changing(Operation::Remove), build).await?;
        match self.inner.removed(ran.results, directory, is_dir) {
            Err(failed) if ran.again => replay::removed(self, caller, directory, failed).await,
            result => result,
        }
    }

    pub(super) async fn rename_name(
        &self,
        caller: &Caller,
        from: (&Handle, &Name),
        to: (&Handle, &Name),
    ) -> Result<Renamed> {
        let build = |_: &State| {
            let names = RenameArgs { oldname: convert::component(from.1), newname: convert::component(to.1) };
            let operations = vec![
                put(from.0)?,
                getattr(convert::BEFORE),
                op::Savefh::with(()),
                put(to.0)?,
                getattr(convert::BEFORE),
                op::Rename::with(names),
                getattr_all(),
                op::Restorefh::with(()),
                getattr_all(),
            ];
            Ok((operations, Used::Nothing))
        };
        let ran = self.inner.run(caller, Plan::changing(Operation::Rename), build).await?;
        match self.inner.renamed(ran.results, from.0, to.0) {
            Err(failed) if ran.again => replay::renamed(self, caller, from.0, to, None, failed).await,
            result => result,
        }
    }
}

impl Nfs4Client {
    fn removed(&self, mut results: Results, directory: &Handle, is_dir: bool) -> Result<Wcc> {
        self.take::<op::Putfh>(&mut results)?;
        let before = self.take_before(&mut results)?;
        self.take::<op::Savefh>(&mut results)?;
        self.take_in_directory::<op::Lookup>(&mut results)?;
        let (verified, otherwise) = if is_dir {
            (results.take::<op::Verify>(), (Wire::NotSame, Status::NotDir))
        } else {
            (results.take::<op::Nverify>(), (Wire::Same, Status::IsDir))
        };
        verified.map_err(|error| match error.status() {
            Some(status) if status == otherwise.0 => otherwise.1.into(),
            _ => self.failed(&error),
        })?;
        self.take::<op::Restorefh>(&mut results)?;
        let cinfo = self.take_in_directory::<op::Remove>(&mut results)?.cinfo;
        let after = self.attributes_after(&mut results, directory, DIRECTORY)?;
        Ok(Around { before, cinfo }.with(after))
    }

    fn renamed(&self, mut results: Results, from: &Handle, to: &Handle) -> Result<Renamed> {
        self.take::<op::Putfh>(&mut results)?;
        let source = self.take_before(&mut results)?;
        self.take::<op::Savefh>(&mut results)?;
        self.take::<op::Putfh>(&mut results)?;
        let target = self.take_before(&mut results)?;
        let ok = self.take_in_directory::<op::Rename>(&mut results)?;
        let target = Around { before: target, cinfo: ok.target_cinfo };
        let source = Around { before: source, cinfo: ok.source_cinfo };
        let to = target.with(self.attributes_after(&mut results, to, DIRECTORY)?);
        if results.take::<op::Restorefh>().is_err() {
            return Ok(Renamed { from: super::state::NO_WCC, to });
        }
        let from = source.with(self.attributes_after(&mut results, from, DIRECTORY)?);
        Ok(Renamed { from, to })
    }
}
