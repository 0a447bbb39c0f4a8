//! READ, WRITE and COMMIT, and the READ that rides on an OPEN.
//!
//! A READ may stand last in the compound of an OPEN, under the state id that this gives: the current one (RFC 8881, section
//! 16.2.3.1.2). It comes behind the grant and the attributes, so that what the delegation vouches for are its bytes too.
//! If it fails, the OPEN stands, and whoever wants the bytes sends a READ of his own and hears why. It has no result of its
//! own that could be lost: carried out twice, it is a READ.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use protocol::nfs4::{
    ArgOp, CommitArgs, Op, Operation, ReadArgs, ReadOk, Results, Stateid, Status as Wire, WriteArgs, op,
};
use vfs::{
    Attributes, Caller, Commit, Data, Handle, OpenId, Read, Result, Share, Stability, StateidBasis, Status,
    Wcc, Written,
};
use xdr::Bulk;

use super::attributes::{REGULAR, getattr_all, put};
use super::execute::Plan;
use super::state::{State, Used};
use super::{Nfs4Client, Phase, convert};

/// What a READ reads: offset and count.
pub(super) type Part = (u64, u32);

/// Bytes of a reply to OPEN besides those that a READ behind it brings: three sets of attributes, two handles, a delegation.
pub(super) const OPEN_BYTES: u32 = 4 << 10;
/// Operations in the longest compound that an OPEN and a READ are in, with SEQUENCE and GET_DIR_DELEGATION.
const OPERATIONS: u32 = 9;

/// The open that I/O names, if it names one.
pub(super) fn open_of(by: StateidBasis) -> Option<OpenId> {
    match by {
        StateidBasis::Anonymous => None,
        StateidBasis::Open(id) => Some(id),
    }
}

impl Nfs4Client {
    /// WRITE and COMMIT do no harm a second time: the same bytes in the same place. Of a file whose delegation is being
    /// recalled, they are what the recall waits for.
    fn writing(&self, handle: &Handle, main: Operation) -> Plan {
        let recalled = self.state.lock().lease_of(handle).is_some_and(|(_, held)| held.recalled);
        let plan = Plan::reading(main);
        if recalled { plan.urgent() } else { plan }
    }

    /// One READ of at most the size that both sides do. The data shares the buffer of the record it came in.
    ///
    /// The attributes are those of before, so that the data is theirs or newer. READ comes last, as all long results do:
    /// where operation number and status of what follows lie in two pages (behind data of 4,089 to 4,092 bytes, modulo
    /// 4,096), Linux 6.1 writes the status four bytes too far.
    pub(super) async fn read_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let count = count.min(self.export().read_max);
        let build = |state: &State| {
            let (stateid, used) = state.for_io(handle, open_of(by), Share::READ).ok_or(Status::BadStateId)?;
            let read = op::Read::with(ReadArgs { stateid, offset, count });
            Ok((vec![put(handle)?, getattr_all(), read], used))
        };
        let mut results = self.run(caller, Plan::reading(Operation::Read), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        // With every READ: see `vfs::Read`. What is no regular file, READ says itself.
        let attributes = self.take_attributes(&mut results, handle, None)?;
        let ok = self.take::<op::Read>(&mut results)?;
        self.read_came(ok, (offset, count), attributes)
    }

    /// What a READ brought. The attributes are those of before.
    fn read_came(&self, ok: ReadOk, (offset, count): Part, attributes: Attributes) -> Result<Read> {
        let Bulk::Bytes(data) = ok.data else { return Err(self.nonsense(Operation::Read, "no data")) };
        if data.len() as u64 > u64::from(count) {
            let came = data.len();
            return Err(
                self.nonsense(Operation::Read, format_args!("asked for {count} bytes, it sends {came}"))
            );
        }
        let mut eof = ok.eof;
        if data.is_empty() && count > 0 && !eof {
            // Nothing, and more to come: only past the end of the file does that mean something.
            eof = attributes.size <= offset;
            if !eof {
                return Err(self.nonsense(Operation::Read, "no bytes, and not the end of the file"));
            }
        }
        Ok(Read { data: Data::Bytes(data), eof, attributes: Some(attributes) })
    }

    /// What may be read along with an OPEN: as much of it as has room beside that.
    pub(super) fn may_ride(&self, (offset, count): Part) -> Option<Part> {
        let (reply_bytes, operations) = match &*self.phase.borrow() {
            Phase::Ready(session) => (session.fore.maxresponsesize, session.fore.maxoperations),
            _ => return None,
        };
        let room = reply_bytes.saturating_sub(OPEN_BYTES).min(self.export().read_max);
        let rides = self.piggybacked_reads.load(Ordering::Relaxed) && operations >= OPERATIONS;
        Some((offset, count.min(room))).filter(|(_, count)| rides && *count > 0)
    }

    /// The READ behind an OPEN, with the file as the current object and the OPEN's state id as the current one.
    pub(super) fn piggyback_read((offset, count): Part) -> ArgOp {
        op::Read::with(ReadArgs { stateid: Stateid::CURRENT, offset, count })
    }

    /// What it brought, if anything. A server that cannot do it is not asked again.
    pub(super) fn take_piggybacked_read(
        &self,
        results: &mut Results,
        part: Part,
        attributes: Attributes,
    ) -> Option<Read> {
        match results.take::<op::Read>() {
            Ok(ok) => self.read_came(ok, part, attributes).ok(),
            Err(error) => {
                let never = [Wire::BadStateid, Wire::Inval, Wire::RepTooBig, Wire::RepTooBigToCache];
                if error.status().is_some_and(|status| never.contains(&status)) {
                    tracing::debug!("server {} does not read along with OPEN: {error}", self.server);
                    self.piggybacked_reads.store(false, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// One WRITE of at most the size that both sides do; the caller learns how much that was.
    pub(super) async fn write_data(
        &self,
        caller: &Caller,
        (handle, by): (&Handle, StateidBasis),
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let data = data.slice(..data.len().min(self.export().write_max as usize));
        let count = data.len() as u32;
        let stable = convert::stable(stability);
        let build = |state: &State| {
            let (stateid, used) =
                state.for_io(handle, open_of(by), Share::WRITE).ok_or(Status::BadStateId)?;
            let data = Bulk::Bytes(data.clone());
            let write = op::Write::with(WriteArgs { stateid, offset, stable, data });
            Ok((vec![put(handle)?, write, getattr_all()], used))
        };
        let mut results = self.run(caller, self.writing(handle, Operation::Write), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let ok = self.take::<op::Write>(&mut results)?;
        let after = self.attributes_after(&mut results, handle, REGULAR)?;
        if ok.count > count || (ok.count == 0 && count > 0) {
            let what = format_args!("sent {count} bytes, it wrote {}", ok.count);
            return Err(self.nonsense(Operation::Write, what));
        }
        let committed = convert::stability(ok.committed);
        if committed < stability {
            let what = format_args!("{stability:?} asked, {committed:?} done");
            return Err(self.nonsense(Operation::Write, what));
        }
        let wcc = Wcc::seen(after);
        Ok(Written { count: ok.count, stability: committed, verifier: ok.writeverf, wcc })
    }

    pub(super) async fn commit_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Commit> {
        let build = |_: &State| {
            let commit = op::Commit::with(CommitArgs { offset, count });
            Ok((vec![put(handle)?, commit, getattr_all()], Used::Nothing))
        };
        let mut results = self.run(caller, self.writing(handle, Operation::Commit), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let verifier = self.take::<op::Commit>(&mut results)?.writeverf;
        let after = self.attributes_after(&mut results, handle, REGULAR)?;
        Ok(Commit { verifier, wcc: Wcc::seen(after) })
    }
}
