//! SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE (RFC 7862).

use protocol::nfs4::{
    AllocateArgs, ArgOp, CloneArgs, CopyArgs, DataContent, Op, Operation, SeekArgs, Stateid, op,
};
use vfs::{Caller, Copied, Error, Extent, Features, Place, Result, Share, Sought, Status, Wcc};
use xdr::List;

use super::attributes::{REGULAR, getattr_all, put};
use super::execute::Plan;
use super::io::open_of;
use super::state::{State, Used};
use super::{Nfs4Client, convert};

/// The state id to use at a place in a file.
fn at(state: &State, place: &Place, access: Share) -> Result<(Stateid, Used)> {
    let found = state.for_io(&place.handle, open_of(place.by), access);
    found.ok_or_else(|| Status::BadStateId.into())
}

/// The operations that make the source the saved filehandle and the destination the current one.
fn both(state: &State, from: &Place, to: &Place) -> Result<(Vec<ArgOp>, Stateid, Stateid, Used)> {
    let (source, _) = at(state, from, Share::READ)?;
    let (destination, used) = at(state, to, Share::WRITE)?;
    let operations = vec![put(&from.handle)?, op::Savefh::with(()), put(&to.handle)?];
    Ok((operations, source, destination, used))
}

impl Nfs4Client {
    pub(super) async fn seek_extent(&self, caller: &Caller, place: Place, what: Extent) -> Result<Sought> {
        self.offers(Features::SEEK)?;
        let what = match what {
            Extent::Data => DataContent::Data,
            Extent::Hole => DataContent::Hole,
        };
        let build = |state: &State| {
            let (stateid, used) = at(state, &place, Share::READ)?;
            let seek = op::Seek::with(SeekArgs { stateid, offset: place.offset, what });
            Ok((vec![put(&place.handle)?, seek, getattr_all()], used))
        };
        let mut results = self.run(caller, Plan::reading(Operation::Seek), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let sought = self.take::<op::Seek>(&mut results);
        let ok = self.learn(Features::SEEK, sought)?;
        if ok.offset < place.offset && !ok.eof {
            return Err(self.nonsense(Operation::Seek, "an extent before where it was looked for"));
        }
        let attributes = self.attributes_after(&mut results, &place.handle, REGULAR)?;
        // The origin says only by `eof` that there is no more data.
        if ok.eof && what == DataContent::Data {
            return Err(Error::from(Status::Nxio).with(attributes));
        }
        Ok(Sought { offset: ok.offset, eof: ok.eof, attributes })
    }

    pub(super) async fn allocate_range(&self, caller: &Caller, place: Place, length: u64) -> Result<Wcc> {
        let with = |args| op::Allocate::with(args);
        self.change_range::<op::Allocate>(caller, place, length, (Features::ALLOCATE, with)).await
    }

    pub(super) async fn deallocate_range(&self, caller: &Caller, place: Place, length: u64) -> Result<Wcc> {
        let with = |args| op::Deallocate::with(args);
        self.change_range::<op::Deallocate>(caller, place, length, (Features::DEALLOCATE, with)).await
    }

    async fn change_range<O>(
        &self,
        caller: &Caller,
        place: Place,
        length: u64,
        (feature, with): (Features, fn(AllocateArgs) -> ArgOp),
    ) -> Result<Wcc>
    where
        O: Op<ResOp = protocol::nfs4::ResOp, Ok = ()>,
    {
        self.offers(feature)?;
        let build = |state: &State| {
            let (stateid, used) = at(state, &place, Share::WRITE)?;
            let change = with(AllocateArgs { stateid, offset: place.offset, length });
            Ok((vec![put(&place.handle)?, change, getattr_all()], used))
        };
        let mut results = self.run(caller, Plan::reading(O::OPERATION), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let changed = self.take::<O>(&mut results);
        self.learn(feature, changed)?;
        Ok(Wcc::seen(self.attributes_after(&mut results, &place.handle, REGULAR)?))
    }

    pub(super) async fn copy_range(
        &self,
        caller: &Caller,
        from: Place,
        to: Place,
        count: u64,
    ) -> Result<Copied> {
        self.offers(Features::COPY)?;
        let build = |state: &State| {
            let (mut operations, src_stateid, dst_stateid, used) = both(state, &from, &to)?;
            operations.push(op::Copy::with(CopyArgs {
                src_stateid,
                dst_stateid,
                src_offset: from.offset,
                dst_offset: to.offset,
                count,
                consecutive: true,
                synchronous: true,
                source_server: List::default(),
            }));
            operations.push(getattr_all());
            Ok((operations, used))
        };
        let plan = Plan::reading(Operation::Copy);
        let mut results = self.run(caller, plan, build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        self.take::<op::Savefh>(&mut results)?;
        self.take::<op::Putfh>(&mut results)?;
        let copied = self.take::<op::Copy>(&mut results);
        let ok = self.learn(Features::COPY, copied)?;
        if ok.response.callback_id.is_some() || (count > 0 && ok.response.count > count) {
            return Err(self.nonsense(Operation::Copy, "more than was asked for, or later"));
        }
        let after = self.attributes_after(&mut results, &to.handle, REGULAR)?;
        Ok(Copied {
            count: ok.response.count,
            stability: convert::stability(ok.response.committed),
            verifier: ok.response.writeverf,
            wcc: Wcc::seen(after),
        })
    }

    pub(super) async fn share_range(
        &self,
        caller: &Caller,
        from: Place,
        to: Place,
        count: u64,
    ) -> Result<Wcc> {
        self.offers(Features::CLONE)?;
        let build = |state: &State| {
            let (mut operations, src_stateid, dst_stateid, used) = both(state, &from, &to)?;
            operations.push(op::Clone::with(CloneArgs {
                src_stateid,
                dst_stateid,
                src_offset: from.offset,
                dst_offset: to.offset,
                count,
            }));
            operations.push(getattr_all());
            Ok((operations, used))
        };
        let mut results = self.run(caller, Plan::reading(Operation::Clone), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        self.take::<op::Savefh>(&mut results)?;
        self.take::<op::Putfh>(&mut results)?;
        let cloned = self.take::<op::Clone>(&mut results);
        self.learn(Features::CLONE, cloned)?;
        Ok(Wcc::seen(self.attributes_after(&mut results, &to.handle, REGULAR)?))
    }
}
