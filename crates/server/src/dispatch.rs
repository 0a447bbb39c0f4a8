//! The service behind the port: the programs and versions that it serves, and what each of them does with a
//! call.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{mount, nfs2, nfs3, nfs4, nqnfs};
use rpc::message::{AUTH_TOOWEAK, Refusal};
use rpc::service::{Answering, Asked, Outcome, Remember};
use rpc::{Call, Service};

use crate::counts::Counts;
use crate::front::Front;
use crate::shared::reply;

/// One version of a program, or several that share their procedures.
struct Entry {
    program: u32,
    versions: RangeInclusive<u32>,
    /// The version is not served in datagrams.
    needs_connection: bool,
    /// Counts a call of this procedure.
    count: fn(&Counts, u32),
    /// Answers a call, and counts how long that took.
    answer: fn(Arc<Front>, Call, Timing) -> Answering,
    /// Answers a peer that no export admits.
    turn_away: fn(&Front, &Call) -> Outcome,
    /// An estimate of the memory that the reply takes up, in bytes.
    reply_bytes: fn(&Asked) -> usize,
    /// Whether the reply is kept for retransmissions.
    remember: fn(&Call) -> Remember,
}

/// A call that is being answered.
#[derive(Clone, Copy, Debug)]
struct Timing {
    procedure: u32,
    began: Instant,
}

impl Timing {
    /// The call is answered. (A function that took the answer's future would have to move it.)
    fn took(self, took: fn(&Counts, u32, Duration), front: &Front) {
        took(&front.shared.counts, self.procedure, self.began.elapsed());
    }
}

/// All that is served. No two entries have a version of a program in common.
static ENTRIES: [Entry; 5] = [
    Entry {
        program: nfs3::PROGRAM,
        versions: nfs3::VERSION..=nfs3::VERSION,
        needs_connection: false,
        count: Counts::add_nfs3,
        answer: |front, call, timing| {
            Box::pin(async move {
                let outcome = crate::nfs3::answer(&front.shared, call).await;
                timing.took(Counts::took_nfs3, &front);
                outcome
            })
        },
        turn_away: null_alone,
        reply_bytes: crate::nfs3::reply_bytes,
        remember: |call| until_heard(crate::nfs3::must_not_repeat(call.header.procedure)),
    },
    Entry {
        program: nfs4::PROGRAM,
        versions: nfs4::VERSION..=nfs4::VERSION,
        // v4 needs a transport that keeps order and detects losses (RFC 8881, section 2.9.1).
        needs_connection: true,
        // COMPOUND counts its operations.
        count: |_, _| {},
        answer: |front, call, timing| {
            Box::pin(async move {
                let outcome = crate::nfs4::answer(&front.nfs4, call).await;
                timing.took(Counts::took_compound, &front);
                outcome
            })
        },
        turn_away: null_alone,
        reply_bytes: crate::nfs4::reply_bytes,
        remember: |call| until_heard(crate::nfs4::must_not_repeat(call)),
    },
    Entry {
        program: nfs2::PROGRAM,
        versions: nfs2::VERSION..=nfs2::VERSION,
        needs_connection: false,
        count: Counts::add_nfs2,
        answer: |front, call, timing| {
            Box::pin(async move {
                let outcome = crate::nfs2::answer(&front.shared, &front.cookies, call).await;
                timing.took(Counts::took_nfs2, &front);
                outcome
            })
        },
        turn_away: null_alone,
        reply_bytes: |_| nfs2::DATA_MAX as usize,
        remember: |call| until_heard(crate::nfs2::must_not_repeat(call.header.procedure)),
    },
    Entry {
        program: nqnfs::PROGRAM,
        versions: nqnfs::VERSION..=nqnfs::VERSION,
        needs_connection: false,
        count: Counts::add_nqnfs,
        answer: |front, call, timing| {
            Box::pin(async move {
                let outcome = crate::nqnfs::answer(&front.nqnfs, call).await;
                timing.took(Counts::took_nqnfs, &front);
                outcome
            })
        },
        turn_away: null_alone,
        reply_bytes: crate::nqnfs::reply_bytes,
        // NQNFS's proof of correctness assumes that the server keeps the reply, whatever the network does.
        remember: |call| {
            let twice_is_harm = crate::nqnfs::must_not_repeat(call.header.procedure);
            if twice_is_harm { Remember::Reply } else { Remember::No }
        },
    },
    Entry {
        program: mount::v3::PROGRAM,
        versions: mount::v1::VERSION..=mount::v3::VERSION,
        needs_connection: false,
        count: |_, _| {},
        answer: |front, call, _| {
            Box::pin(async move { crate::mount::answer(&front.shared, &front.mounts, call).await })
        },
        turn_away: |front, call| crate::mount::turn_away(&front.shared, &front.mounts, call),
        reply_bytes: |_| 0,
        remember: |_| Remember::No,
    },
];

impl Service for Front {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        self.nqnfs.nqnfs.start();
        match taking(&call) {
            Ok(entry) => {
                let timing = Timing { procedure: call.header.procedure, began: Instant::now() };
                (entry.count)(&self.shared.counts, timing.procedure);
                self.shared.usage.call(call.peer.ip());
                (entry.answer)(self, call, timing)
            }
            Err(refusal) => Box::pin(std::future::ready(refusal.into())),
        }
    }

    /// A peer that no export admits creates no state and learns nothing about the exports.
    fn admits(&self, peer: SocketAddr) -> bool {
        self.shared.exports.iter().any(|export| export.options().admits(peer))
    }

    fn turn_away(&self, call: &Call) -> Outcome {
        match find(call.header.program, call.header.version) {
            Some(entry) => (entry.turn_away)(self, call),
            None => Refusal::Auth(AUTH_TOOWEAK).into(),
        }
    }

    fn reply_bytes(&self, asked: &Asked) -> usize {
        find(asked.program, asked.version).map_or(0, |entry| (entry.reply_bytes)(asked))
    }

    fn remember(&self, call: &Call) -> Remember {
        let entry = find(call.header.program, call.header.version);
        entry.map_or(Remember::No, |entry| (entry.remember)(call))
    }
}

/// The entry of a version of a program, if it is served at all.
fn find(program: u32, version: u32) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.program == program && entry.versions.contains(&version))
}

/// The entry that answers this call.
///
/// # Errors
/// With the versions that the client may try instead. A version that is not served over this transport is
/// not among them.
fn taking(call: &Call) -> Result<&'static Entry, Refusal> {
    let (program, version) = (call.header.program, call.header.version);
    let found = find(program, version).filter(|entry| !entry.needs_connection || call.connection.is_some());
    found.ok_or_else(|| refusal(program, version))
}

/// The refusal of a version, with the range of the others.
fn refusal(program: u32, version: u32) -> Refusal {
    let of_program = ENTRIES.iter().filter(|entry| entry.program == program);
    let others = of_program.map(|entry| &entry.versions).filter(|versions| !versions.contains(&version));
    let range = others.fold(None, |range, versions| {
        let (low, high) = range.unwrap_or((*versions.start(), *versions.end()));
        Some((low.min(*versions.start()), high.max(*versions.end())))
    });
    match range {
        Some((low, high)) => Refusal::ProgramMismatch { low, high },
        None => Refusal::ProgramUnavailable,
    }
}

/// A peer that no export admits gets the answer to the null procedure and no other.
fn null_alone(_front: &Front, call: &Call) -> Outcome {
    if call.header.procedure == 0 { reply(call, &()) } else { Refusal::Auth(AUTH_TOOWEAK).into() }
}

fn until_heard(twice_is_harm: bool) -> Remember {
    if twice_is_harm { Remember::UntilHeard } else { Remember::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_one_entry() {
        for entry in &ENTRIES {
            for version in entry.versions.clone() {
                assert!(std::ptr::eq(find(entry.program, version).unwrap(), entry));
            }
        }
    }

    #[test]
    fn a_refusal_names_the_other_versions() {
        let mismatch = |low, high| Refusal::ProgramMismatch { low, high };
        for (program, version, refused) in [
            // Version 4 in a datagram.
            (nfs4::PROGRAM, nfs4::VERSION, mismatch(2, 3)),
            (nfs4::PROGRAM, 1, mismatch(2, 4)),
            (nfs4::PROGRAM, 5, mismatch(2, 4)),
            (nqnfs::PROGRAM, 2, mismatch(1, 1)),
            (mount::v3::PROGRAM, 4, mismatch(1, 3)),
            (100_000, 2, Refusal::ProgramUnavailable),
        ] {
            assert_eq!(refusal(program, version), refused);
        }
    }
}
