//! The next call of each slot of a lane, encoded in advance, and the checks of its reply.

use protocol::nfs3::{self, Procedure, Status, call};
use protocol::{Call, Reply};
use rpc::message::CallHeader;
use xdr::{Bulk, Decode, Decoder, Encode, Encoder};

use super::server::{Server, root_credential};
use super::tree::{self, Tree};
use super::{Fault, Workload};

/// ACCESS with all bits.
const ACCESS_ALL: u32 = 0x3f;
/// The limit of a READDIRPLUS reply, and of its names.
const READDIRPLUS_BYTES: u32 = 64 << 10;
/// Bytes after which writing starts over, and bytes between two COMMITs.
const WRITE_FILE_BYTES: u64 = 64 << 20;
const COMMIT_EACH_BYTES: u64 = 4 << 20;

/// A call as it is sent: record mark, header, arguments.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) procedure: Procedure,
    /// Offset of the arguments.
    arguments_at: usize,
}

impl Encoded {
    fn new<C: Call>(procedure: Procedure, args: &C::Args) -> std::io::Result<Encoded> {
        let header = CallHeader {
            xid: 0,
            program: C::PROGRAM,
            version: C::VERSION,
            procedure: C::NUMBER,
            credential: root_credential(),
        };
        let mut encoder = Encoder::new();
        header.encode(&mut encoder);
        let arguments_at = 4 + encoder.len();
        args.encode(&mut encoder);
        let message = encoder.finish().to_bytes()?;
        let mut bytes = rpc::record::mark(message.len()).to_vec();
        bytes.extend_from_slice(&message);
        Ok(Encoded { bytes, procedure, arguments_at })
    }

    pub(super) fn set_xid(&mut self, xid: u32) {
        self.bytes[4..8].copy_from_slice(&xid.to_be_bytes());
    }

    /// Sets the offset of a READ or WRITE, which follows the handle and its length.
    fn set_offset(&mut self, offset: u64, handle: nfs3::Handle) {
        let at = self.arguments_at + 4 + handle.len() + xdr::padding(handle.len());
        self.bytes[at..at + 8].copy_from_slice(&offset.to_be_bytes());
    }
}

/// The calls of one lane.
#[derive(Debug)]
pub(super) struct Script {
    plan: Plan,
    random: Random,
    /// Bytes that each READ or WRITE must move.
    transfer_bytes: u32,
}

#[derive(Debug)]
enum Plan {
    /// One of these, at random.
    Any(Vec<Encoded>),
    /// READ of a block of `file`: at random, or the next one.
    Read { call: Encoded, file: nfs3::Handle, blocks: u64, next: Option<u64> },
    /// WRITE of the next block of `file`, or COMMIT.
    Write { write: Encoded, commit: Encoded, file: nfs3::Handle, next: u64, uncommitted: u64 },
    /// In each slot, the two calls in turn.
    CreateRemove { places: Vec<(bool, Encoded, Encoded)> },
}

impl Script {
    /// The script of one lane. `(lane, lanes)` is its number and the number of lanes.
    pub(super) async fn new(
        workload: Workload,
        server: &Server,
        tree: &Tree,
        (lane, lanes): (usize, usize),
        slots: usize,
    ) -> Result<Script, super::Error> {
        let transfer_bytes = workload.transfer_bytes();
        let plan = match workload {
            // Each lane writes its own file.
            Workload::Write64k => {
                write_plan(tree::create(server, tree.scratch, &format!("w{lane}")).await?, transfer_bytes)
            }
            _ => plan(workload, tree, (lane, lanes), slots),
        };
        // Encoding cannot fail here: all data is in memory.
        let plan = plan.map_err(|source| super::Error::Connect { server: server.address, source })?;
        let random = Random(u64::from(tree::random()) << 1 | 1);
        Ok(Script { plan, random, transfer_bytes })
    }

    /// An approximate upper bound of the length of a reply.
    pub(super) fn reply_bytes(&self) -> usize {
        match self.plan {
            Plan::Read { .. } => self.transfer_bytes as usize + 256,
            _ => READDIRPLUS_BYTES as usize,
        }
    }

    /// The next call of a slot.
    pub(super) fn next(&mut self, slot: usize) -> &mut Encoded {
        match &mut self.plan {
            Plan::Any(calls) => {
                let index = self.random.below(calls.len() as u64) as usize;
                &mut calls[index]
            }
            Plan::Read { call, file, blocks, next } => {
                let block = match next {
                    None => self.random.below(*blocks),
                    Some(next) => {
                        *next = (*next + 1) % *blocks;
                        *next
                    }
                };
                call.set_offset(block * u64::from(self.transfer_bytes), *file);
                call
            }
            Plan::Write { write, commit, file, next, uncommitted } => {
                if *uncommitted >= COMMIT_EACH_BYTES {
                    *uncommitted = 0;
                    return commit;
                }
                write.set_offset(*next, *file);
                *next = (*next + u64::from(self.transfer_bytes)) % WRITE_FILE_BYTES;
                *uncommitted += u64::from(self.transfer_bytes);
                write
            }
            Plan::CreateRemove { places } => {
                let (made, create, remove) = &mut places[slot];
                *made = !*made;
                if *made { create } else { remove }
            }
        }
    }

    /// Checks a reply. Returns the bytes of data that it contains or acknowledges. JUKEBOX is an error: a
    /// server that postpones calls cannot be measured.
    pub(super) fn heard(&self, procedure: Procedure, results: Decoder) -> Result<u64, Fault> {
        let wanted = self.transfer_bytes;
        let moved = |got: u32| {
            if got == wanted { Ok(u64::from(got)) } else { Err(Fault::Short { procedure, got, wanted }) }
        };
        match procedure {
            Procedure::Null => Ok(0),
            Procedure::Getattr => ok::<call::Getattr, _, _>(procedure, results).map(|_| 0),
            Procedure::Lookup => ok::<call::Lookup, _, _>(procedure, results).map(|_| 0),
            Procedure::Access => ok::<call::Access, _, _>(procedure, results).map(|_| 0),
            Procedure::Read => {
                let read = ok::<call::Read, _, _>(procedure, results)?;
                moved(read.count.min(read.data.len() as u32))
            }
            Procedure::Write => moved(ok::<call::Write, _, _>(procedure, results)?.count),
            // Decoding a directory would take longer than sending it. For this and the other procedures, the
            // status suffices.
            Procedure::Readdirplus => status(procedure, results),
            _ => status(procedure, results).map(|_| 0),
        }
    }
}

fn ok<C, T, F>(procedure: Procedure, mut results: Decoder) -> Result<T, Fault>
where
    C: Call<Results = nfs3::Reply<T, F>>,
    nfs3::Reply<T, F>: Decode,
{
    match C::Results::decode(&mut results)? {
        Reply::Ok(ok) => Ok(ok),
        Reply::Fail(status, _) => Err(Fault::Status { procedure, status }),
    }
}

/// The number of bytes after the status, if the status is OK.
fn status(procedure: Procedure, mut results: Decoder) -> Result<u64, Fault> {
    match results.u32()? {
        0 => Ok(results.remaining() as u64),
        status => Err(Fault::Status { procedure, status: Status::from(status) }),
    }
}

/// Plans for which no file has to be created.
fn plan(
    workload: Workload,
    tree: &Tree,
    (lane, lanes): (usize, usize),
    slots: usize,
) -> std::io::Result<Plan> {
    let small = tree.small.iter().copied();
    let any = |calls: std::io::Result<Vec<Encoded>>| calls.map(Plan::Any);
    match workload {
        Workload::Null => any(Encoded::new::<call::Null>(Procedure::Null, &()).map(|call| vec![call])),
        Workload::Getattr => any(small
            .map(|object| Encoded::new::<call::Getattr>(Procedure::Getattr, &nfs3::GetattrArgs { object }))
            .collect()),
        Workload::Lookup => any((0..tree.small.len())
            .map(|index| {
                let what = tree::place(tree.files, &tree::small_name(index));
                Encoded::new::<call::Lookup>(Procedure::Lookup, &nfs3::LookupArgs { what })
            })
            .collect()),
        Workload::Access => any(small
            .map(|object| {
                let args = nfs3::AccessArgs { object, access: ACCESS_ALL };
                Encoded::new::<call::Access>(Procedure::Access, &args)
            })
            .collect()),
        Workload::Readdirplus => {
            let args = nfs3::ReaddirplusArgs {
                dir: tree.files,
                cookie: 0,
                cookieverf: [0; 8],
                dircount: READDIRPLUS_BYTES,
                maxcount: READDIRPLUS_BYTES,
            };
            any(Encoded::new::<call::Readdirplus>(Procedure::Readdirplus, &args).map(|call| vec![call]))
        }
        Workload::CreateRemove => {
            let places = (0..slots).map(|slot| {
                let name = format!("c{lane}-{slot}");
                let create = tree::create_args(tree.scratch, &name);
                let remove = tree::remove_args(tree.scratch, &name);
                Ok((
                    false,
                    Encoded::new::<call::Create>(Procedure::Create, &create)?,
                    Encoded::new::<call::Remove>(Procedure::Remove, &remove)?,
                ))
            });
            places.collect::<std::io::Result<_>>().map(|places| Plan::CreateRemove { places })
        }
        Workload::Read4k | Workload::Read64k | Workload::Read1m | Workload::Write64k => {
            let count = workload.transfer_bytes();
            let blocks = (tree.large_bytes / u64::from(count)).max(1);
            let args = nfs3::ReadArgs { file: tree.large, offset: 0, count };
            let call = Encoded::new::<call::Read>(Procedure::Read, &args)?;
            // Each lane begins in a different part of the file.
            let next = (workload == Workload::Read1m).then_some(blocks * lane as u64 / lanes as u64);
            Ok(Plan::Read { call, file: tree.large, blocks, next })
        }
    }
}

fn write_plan(file: nfs3::Handle, count: u32) -> std::io::Result<Plan> {
    let data = Bulk::Bytes(tree::pattern(count as usize));
    let write = nfs3::WriteArgs { file, offset: 0, count, stable: nfs3::StableHow::Unstable, data };
    let commit = nfs3::CommitArgs { file, offset: 0, count: 0 };
    Ok(Plan::Write {
        write: Encoded::new::<call::Write>(Procedure::Write, &write)?,
        commit: Encoded::new::<call::Commit>(Procedure::Commit, &commit)?,
        file,
        next: 0,
        uncommitted: 0,
    })
}

/// Marsaglia's xorshift: good enough to choose files. The state is never zero.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}
