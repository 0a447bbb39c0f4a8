//! The bodies of the fuzz targets of RPC. One takes any bytes as a stream of records and as one datagram; the
//! other runs a sequence of calls against the reply cache.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::Bytes;
use xdr::Message;

use crate::ReplyCache;
use crate::auth::{AuthSys, Credential};
use crate::message::{CallHeader, Incoming, parse_reply};
use crate::record::Assembler;
use crate::replay::{Admission, ReplyLifetime, Sender, Slot};

/// The bound on records. It is small, so that the fuzzer reaches it.
const BOUND: usize = 1 << 16;

/// Decodes any bytes as a connection and a socket would.
pub fn rpc(input: &[u8]) {
    message(Bytes::copy_from_slice(input));
    let mut assembler = Assembler::new(BOUND);
    assembler.buffer.extend_from_slice(input);
    while let Ok(Some(record)) = assembler.take() {
        assert!(record.len() <= BOUND);
        message(record);
    }
}

fn message(record: Bytes) {
    match Incoming::parse(record) {
        Ok(Incoming::Reply { rest, .. }) => drop(parse_reply(rest)),
        Ok(Incoming::Call(header, _)) => assert!(xdr::to_bytes(&header).is_ok_and(|bytes| bytes.len() >= 40)),
        Ok(Incoming::Mismatch { .. } | Incoming::BadCredential { .. }) | Err(_) => {}
    }
}

/// The parts of a call by which the reply cache may tell calls apart: host, xid, user and arguments.
type Same = (u8, u8, u8, u8);

/// The model's state of a call.
enum Known {
    Running {
        slot: Slot,
        resent: bool,
        from: Sender,
        lifetime: ReplyLifetime,
    },
    /// The call was dropped, and may have taken effect.
    Unanswered,
    Answered {
        reply: Bytes,
        from: Sender,
        lifetime: ReplyLifetime,
        heard: bool,
    },
}

/// Two bytes are one step. A step is a call of one of two hosts over one of four connections, the end of a
/// running call, or the end of a connection. Each call is executed once as long as the cache owes its reply,
/// and no caller gets the reply to another call.
pub fn replies(input: &[u8]) {
    let cache = ReplyCache::volatile();
    let mut model: BTreeMap<Same, Known> = BTreeMap::new();
    let mut put_off: BTreeSet<(u8, u8, u8)> = BTreeSet::new();
    for (step, pair) in input.chunks_exact(2).enumerate().take(4096) {
        let (what, bits) = (pair[0], pair[1]);
        let same: Same = (bits & 1, bits >> 1 & 3, bits >> 3 & 1, bits >> 4 & 3);
        let sessionless = (same.0, same.2, same.3);
        match (what % 8, model.remove(&same)) {
            (0..4, known) => {
                let lifetime = if what & 8 == 0 { ReplyLifetime::Kept } else { ReplyLifetime::UntilHeard };
                let is_put_off = put_off.contains(&sessionless);
                let was_running = matches!(known, Some(Known::Running { .. }));
                let known = called(&cache, known, same, (sender(same, bits >> 6), lifetime), is_put_off);
                if !was_running && matches!(known, Known::Running { .. }) {
                    // Only one of several such calls can be the copy.
                    put_off.remove(&sessionless);
                }
                model.insert(same, known);
            }
            (4, Some(Known::Running { slot, from, lifetime, .. })) => {
                let reply = reply(same, step, what >> 3 & 1);
                slot.complete(&Message { first: reply.clone(), more: Vec::new() });
                model.insert(same, Known::Answered { reply, from, lifetime, heard: false });
            }
            (5, Some(Known::Running { slot, resent, .. })) if what & 8 != 0 => {
                slot.put_off(&Message { first: Bytes::new(), more: Vec::new() });
                if resent {
                    put_off.insert(sessionless);
                }
            }
            (5, Some(Known::Running { slot, .. })) => slot.forget(),
            (6, Some(Known::Running { slot, .. })) => {
                drop(slot);
                model.insert(same, Known::Unanswered);
            }
            (7, known) => {
                known.into_iter().for_each(|known| drop(model.insert(same, known)));
                let connection = u64::from(bits & 7);
                cache.heard(connection);
                for known in model.values_mut() {
                    if let Known::Answered { from, lifetime: ReplyLifetime::UntilHeard, heard, .. } = known {
                        *heard |= from.connection == Some(connection);
                    }
                }
            }
            (_, known) => known.into_iter().for_each(|known| drop(model.insert(same, known))),
        }
    }
}

/// Admits a call, and returns the model's state of it afterwards.
fn called(
    cache: &std::sync::Arc<ReplyCache>,
    known: Option<Known>,
    same: Same,
    (from, lifetime): (Sender, ReplyLifetime),
    is_put_off: bool,
) -> Known {
    let (_, xid, uid, argument) = same;
    let credential = Credential::Sys(AuthSys { uid: uid.into(), ..AuthSys::default() });
    let header = CallHeader { xid: xid.into(), program: 100_003, version: 3, procedure: 8, credential };
    let arguments: (&[u8], _) = (&[xid, argument], Some(&[argument][..]));
    match (cache.admit(from, &header, arguments, lifetime), known) {
        (Admission::Running(done), Some(running @ Known::Running { .. })) => {
            assert!(done.borrow().is_none(), "it has not been answered");
            running
        }
        (Admission::Answered(message), Some(Known::Answered { reply, from: first, lifetime, heard })) => {
            assert_eq!(message.first, reply, "the reply to another call");
            assert!(!heard || first.address.port() == from.address.port(), "it has been heard elsewhere");
            Known::Answered { reply, from: first, lifetime, heard }
        }
        (Admission::Execute { slot, resent }, known) => {
            match known {
                None => assert_eq!(resent, is_put_off),
                Some(Known::Unanswered) => assert!(resent),
                Some(Known::Answered { reply, from: first, heard, .. }) => {
                    assert!(heard && first.address.port() != from.address.port(), "carried out twice");
                    assert_eq!(resent, is_put_off || reply.get(24..28) == Some(&[0; 4]));
                }
                Some(Known::Running { .. }) => unreachable!("carried out twice at once"),
            }
            Known::Running { slot, resent, from, lifetime }
        }
        (admission, _) => unreachable!("{admission:?} of what is not known"),
    }
}

/// One of four connections of a host, each from its own port.
fn sender((host, ..): Same, connection: u8) -> Sender {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), 700 + u16::from(connection));
    Sender { address, connection: Some(u64::from(host) * 4 + u64::from(connection)) }
}

/// A reply that differs at each step, of success or failure.
fn reply(same: Same, step: usize, failed: u8) -> Bytes {
    let mut bytes = vec![0; 24];
    bytes.extend([0, 0, 0, failed, same.0, same.1, same.2, same.3]);
    bytes.extend((step as u64).to_be_bytes());
    bytes.into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_carried_out_twice_or_answered_for_another() {
        protocol::fuzzing::over_corpus("replies", super::replies);
    }

    #[test]
    fn the_body_holds() {
        protocol::fuzzing::over_corpus("rpc", super::rpc);
    }
}
