//! Parses the traffic and counts the NFS calls to the target by kind, whatever client and server are used.
//!
//! Calls of versions 2, 3 and NQNFS are counted by procedure. A version 4 compound counts as one call, under
//! the operation that it was made for. In addition each of its operations is counted. If a stream turns out
//! not to be RPC, the tap stops parsing it, and its bytes pass uncounted.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::nfs4::{CompoundHeader, Operation};
use protocol::{nfs2, nfs3, nfs4, nqnfs};
use rpc::message::Incoming;
use rpc::record::Assembler;
use xdr::Decode;

/// The longest call that is accepted: well over 1 MiB of data and a header.
pub(super) const CALL_MAX_BYTES: usize = 4 << 20;

/// Counts of calls by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Calls {
    /// Calls, each a round trip: by procedure, or by the operation that a compound was made for.
    pub calls: BTreeMap<String, u64>,
    /// Operations: each operation of version 4 compounds, and the procedures of versions 2 and 3.
    pub operations: BTreeMap<String, u64>,
}

impl Calls {
    /// Number of all calls.
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Number of calls without upkeep, the calls that keep a session or a lease alive.
    pub fn total_of_work(&self) -> u64 {
        self.work().map(|(_, count)| count).sum()
    }

    /// The calls without upkeep, by kind.
    pub fn work(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.calls.iter().filter(|(name, _)| !is_upkeep(name))
    }

    /// Number of calls of one kind.
    pub fn of(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }

    /// Number of operations of one kind.
    pub fn operations_of(&self, name: &str) -> u64 {
        self.operations.get(name).copied().unwrap_or(0)
    }

    /// The calls made after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Calls) -> Calls {
        let subtract = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let difference = now.iter().map(|(name, count)| {
                (name.clone(), count.saturating_sub(then.get(name).copied().unwrap_or(0)))
            });
            difference.filter(|(_, count)| *count > 0).collect()
        };
        Calls {
            calls: subtract(&self.calls, &earlier.calls),
            operations: subtract(&self.operations, &earlier.operations),
        }
    }

    /// The calls and operations of these kinds only.
    #[must_use]
    pub fn only(&self, kinds: &[&str]) -> Calls {
        let keep = |all: &BTreeMap<String, u64>| {
            let kept = all.iter().filter(|(name, _)| kinds.contains(&name.as_str()));
            kept.map(|(name, count)| (name.clone(), *count)).collect()
        };
        Calls { calls: keep(&self.calls), operations: keep(&self.operations) }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Calls) {
        let sum = |ours: &mut BTreeMap<String, u64>, theirs: &BTreeMap<String, u64>| {
            theirs.iter().for_each(|(name, count)| *ours.entry(name.clone()).or_default() += count);
        };
        sum(&mut self.calls, &other.calls);
        sum(&mut self.operations, &other.operations);
    }

    fn count_call(&mut self, name: &str) {
        *self.calls.entry(name.to_owned()).or_default() += 1;
    }

    fn count_operation(&mut self, name: &str) {
        *self.operations.entry(name.to_owned()).or_default() += 1;
    }

    /// Counts a complete RPC message.
    fn take(&mut self, message: Bytes) {
        let Ok(Incoming::Call(header, rest)) = Incoming::parse(message) else { return };
        let name = match (header.program, header.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => {
                nfs3::Procedure::ALL.iter().find(|it| **it as u32 == header.procedure).map(|it| it.name())
            }
            (nfs2::PROGRAM, nfs2::VERSION) => {
                nfs2::Procedure::ALL.iter().find(|it| **it as u32 == header.procedure).map(|it| it.name())
            }
            (nqnfs::PROGRAM, nqnfs::VERSION) => {
                nqnfs::Procedure::ALL.iter().find(|it| **it as u32 == header.procedure).map(|it| it.name())
            }
            (nfs4::PROGRAM, nfs4::VERSION) if header.procedure == 1 => return self.take_compound(rest),
            _ => None,
        };
        if let Some(name) = name {
            self.count_call(name);
            self.count_operation(name);
        }
    }

    fn take_compound(&mut self, mut rest: xdr::Decoder) {
        let Ok(mut compound) = CompoundHeader::decode(&mut rest) else { return };
        let mut made_for: Option<Operation> = None;
        // An operation that cannot be decoded is the last one counted, under the operation of its number.
        while let Some(next) = compound.next(&mut rest) {
            let operation = next.map_or_else(|bad| bad.operation, |argument| argument.operation());
            self.count_operation(operation.name());
            if made_for.is_none_or(|so_far| weight(operation) > weight(so_far)) {
                made_for = Some(operation);
            }
        }
        if let Some(operation) = made_for {
            self.count_call(operation.name());
        }
    }
}

/// A compound counts as made for its heaviest operation; among equally heavy ones, for the first.
fn weight(operation: Operation) -> u32 {
    match operation {
        Operation::Sequence => 0,
        Operation::Putfh
        | Operation::Putrootfh
        | Operation::Putpubfh
        | Operation::Savefh
        | Operation::Restorefh
        | Operation::Getfh => 1,
        Operation::Getattr => 2,
        // If a compound has another purpose, the request for a directory delegation is piggybacked on it.
        Operation::Access | Operation::GetDirDelegation | Operation::Verify | Operation::Nverify => 3,
        Operation::Lookup | Operation::Lookupp => 4,
        _ => 5,
    }
}

/// True for calls that a client sends even if no workload runs.
fn is_upkeep(name: &str) -> bool {
    ["SEQUENCE", "RENEW", "NULL", "EXCHANGE_ID", "CREATE_SESSION", "RECLAIM_COMPLETE", "BIND_CONN_TO_SESSION"]
        .contains(&name)
}

/// The running counts of a relay.
#[derive(Debug, Default)]
pub(super) struct Tap(Mutex<Calls>);

impl Tap {
    /// The counts now.
    pub(super) fn calls(&self) -> Calls {
        self.0.lock().clone()
    }

    /// Counts a datagram, which is one complete message.
    pub(super) fn datagram(&self, bytes: &[u8]) {
        self.0.lock().take(Bytes::copy_from_slice(bytes));
    }

    /// Starts to parse the stream of one connection.
    pub(super) fn stream(&self) -> StreamTap<'_> {
        StreamTap { tap: self, assembler: Some(Assembler::new(CALL_MAX_BYTES)) }
    }
}

/// Parses one stream.
pub(super) struct StreamTap<'t> {
    tap: &'t Tap,
    /// `None` once the stream has turned out not to be RPC.
    assembler: Option<Assembler>,
}

impl StreamTap<'_> {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let Some(assembler) = &mut self.assembler else { return };
        BytesMut::extend_from_slice(&mut assembler.buffer, bytes);
        loop {
            match assembler.take() {
                Ok(Some(message)) => self.tap.0.lock().take(message),
                Ok(None) => return,
                Err(_) => {
                    self.assembler = None;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::nfs4::{ArgOp, Bitmap, CompoundArgs, GetattrArgs, Op, op};
    use rpc::Credential;
    use rpc::message::CallHeader;
    use xdr::{Encode, Encoder};

    fn message(program: u32, version: u32, procedure: u32, arguments: impl Fn(&mut Encoder)) -> Vec<u8> {
        let mut encoder = Encoder::new();
        CallHeader { xid: 7, program, version, procedure, credential: Credential::None }.encode(&mut encoder);
        arguments(&mut encoder);
        encoder.finish().to_bytes().unwrap().to_vec()
    }

    fn compound(operations: Vec<ArgOp>) -> Vec<u8> {
        let arguments = CompoundArgs::new(2, operations).unwrap();
        message(nfs4::PROGRAM, nfs4::VERSION, 1, |encoder| arguments.encode(encoder))
    }

    fn getattr() -> ArgOp {
        op::Getattr::with(GetattrArgs { attr_request: Bitmap::default() })
    }

    fn counted(messages: &[Vec<u8>], step: usize) -> Calls {
        let tap = Tap::default();
        let mut stream = tap.stream();
        let all: Vec<u8> = messages
            .iter()
            .flat_map(|message| [&rpc::record::mark(message.len())[..], message].concat())
            .collect();
        all.chunks(step).for_each(|chunk| stream.feed(chunk));
        tap.calls()
    }

    #[test]
    fn calls_are_counted_by_what_they_were_made_for() {
        let messages = [
            message(nfs3::PROGRAM, 3, 1, |encoder| encoder.u32(0)),
            message(nfs3::PROGRAM, 3, 6, |encoder| encoder.u32(0)),
            compound(vec![op::Putrootfh::with(()), getattr()]),
            compound(vec![op::Putrootfh::with(()), op::Lookupp::with(()), op::Getfh::with(()), getattr()]),
            message(100_005, 3, 1, |_| {}),
        ];
        for step in [1, 7, 4096] {
            let calls = counted(&messages, step);
            let names: Vec<(&str, u64)> =
                calls.calls.iter().map(|(name, count)| (name.as_str(), *count)).collect();
            assert_eq!(names, [("GETATTR", 2), ("LOOKUPP", 1), ("READ", 1)], "in steps of {step}");
            assert_eq!((calls.operations_of("GETATTR"), calls.operations_of("PUTROOTFH")), (3, 2));
        }
    }

    #[test]
    fn what_is_no_rpc_passes_uncounted() {
        let tap = Tap::default();
        let mut stream = tap.stream();
        stream.feed(b"\xff\xff\xff\xffGET / HTTP/1.1\r\n\r\n");
        stream.feed(&[0; 100]);
        assert_eq!(tap.calls().total(), 0);
    }

    #[test]
    fn differences_leave_out_what_did_not_change() {
        let first = counted(&[message(nfs3::PROGRAM, 3, 1, |_| {})], 100);
        let mut both = first.clone();
        both.add(&counted(&[message(nfs3::PROGRAM, 3, 6, |_| {})], 100));
        assert_eq!(both.since(&first).calls.into_iter().collect::<Vec<_>>(), [("READ".to_owned(), 1)]);
        assert_eq!(both.total(), 2);
    }
}
