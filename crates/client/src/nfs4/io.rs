//! READ, WRITE and COMMIT, and the READ that piggybacks on an OPEN.
//!
//! A READ may be the last operation in the compound of an OPEN, under the current state id, which OPEN sets
//! (RFC 8881, section 16.2.3.1.2). It follows the grant and the attributes, so the delegation also covers its
//! data. If the READ fails, the OPEN stands; a caller that wants the data sends its own READ and gets the
//! error. The READ is idempotent, so losing or repeating it does no harm.

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

/// Offset and count of a READ.
pub(super) type Part = (u64, u32);

/// Size of a reply to OPEN without the data of its READ: three sets of attributes, two handles, a delegation.
pub(super) const OPEN_BYTES: u32 = 4 << 10;
/// Operations in the longest compound with an OPEN and a READ, including SEQUENCE and GET_DIR_DELEGATION.
const OPERATIONS: u32 = 9;

/// The open that I/O names, if any.
pub(super) fn open_of(by: StateidBasis) -> Option<OpenId> {
    match by {
        StateidBasis::Anonymous => None,
        StateidBasis::Open(id) => Some(id),
    }
}

impl Nfs4Client {
    /// The plan for WRITE and COMMIT, which are idempotent: the same bytes go to the same place. If the
    /// file's delegation is being recalled, the recall waits for them.
    fn writing(&self, handle: &Handle, main: Operation) -> Plan {
        let recalled = self.state.lock().lease_of(handle).is_some_and(|(_, held)| held.recalled);
        let plan = Plan::reading(main);
        if recalled { plan.urgent() } else { plan }
    }

    /// Sends one READ, of at most the size that both sides support. The data shares the buffer of the record
    /// that it came in.
    ///
    /// The compound reads the attributes before the data, so the data is as new as the attributes or newer.
    /// READ comes last, as all long results do. Otherwise Linux 6.1 writes the status of the next result four
    /// bytes too far, if its operation number and status lie in two pages. This happens after data of 4,089
    /// to 4,092 bytes, modulo 4,096.
    pub(super) async fn read_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let count = count.min(self.export().read_max);
        let _carried = self.channel.links().carry(count);
        let build = |state: &State| {
            let (stateid, used) = state.for_io(handle, open_of(by), Share::READ).ok_or(Status::BadStateId)?;
            let read = op::Read::with(ReadArgs { stateid, offset, count });
            Ok((vec![put(handle)?, getattr_all(), read], used))
        };
        let mut results = self.run(caller, Plan::reading(Operation::Read), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        // Every READ returns attributes: see `vfs::Read`. If the file is not a regular file, READ itself says
        // so.
        let attributes = self.take_attributes(&mut results, handle, None)?;
        let ok = self.take::<op::Read>(&mut results)?;
        self.read_came(ok, (offset, count), attributes)
    }

    /// Checks the result of a READ. The attributes are those from before it.
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
            // No data and no end of file makes sense only at or past the end of the file.
            eof = attributes.size <= offset;
            if !eof {
                return Err(self.nonsense(Operation::Read, "no bytes, and not the end of the file"));
            }
        }
        Ok(Read { data: Data::Bytes(data), eof, attributes: Some(attributes) })
    }

    /// The part of a READ that may piggyback on an OPEN: as much as the reply can hold besides the OPEN's
    /// results.
    pub(super) fn may_piggyback(&self, (offset, count): Part) -> Option<Part> {
        let (reply_bytes, operations) = match &*self.phase.borrow() {
            Phase::Ready(session) => (session.fore.maxresponsesize, session.fore.maxoperations),
            _ => return None,
        };
        let room = reply_bytes.saturating_sub(OPEN_BYTES).min(self.export().read_max);
        let rides = self.piggybacked_reads.load(Ordering::Relaxed) && operations >= OPERATIONS;
        Some((offset, count.min(room))).filter(|(_, count)| rides && *count > 0)
    }

    /// The READ after an OPEN. The file is the current filehandle, and the OPEN's state id the current one.
    pub(super) fn piggyback_read((offset, count): Part) -> ArgOp {
        op::Read::with(ReadArgs { stateid: Stateid::CURRENT, offset, count })
    }

    /// Takes the result of the piggybacked READ, if any. A server that cannot do it is not asked again.
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

    /// Sends one WRITE, of at most the size that both sides support. The result says how many bytes were
    /// written.
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
        let _carried = self.channel.links().carry(count);
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
