//! The service behind the port: the programs and versions that it serves, and what each of them does with a
//! call.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{mount, nfs2, nfs3, nfs4, nlm, nqnfs, nsm};
use rpc::message::{AUTH_REJECTEDCRED, AUTH_TOOWEAK, Refusal};
use rpc::service::{Answering, Asked, Outcome, Remember};
use rpc::{Call, Credential, Service, TransportSecurity};

use crate::counts::Counts;
use crate::exports::{Exports, Squash};
use crate::front::Front;
use crate::groups::{Groups, Lookup};
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
    /// Whether calls of others may wait for this one, so that it must not wait behind those of its client.
    is_urgent: fn(&Asked) -> bool,
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
static ENTRIES: [Entry; 8] = [
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
        is_urgent: is_null,
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
        remember: crate::nfs4::remember,
        is_urgent: crate::nfs4::is_urgent,
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
        is_urgent: is_null,
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
        is_urgent: |asked| crate::nqnfs::is_urgent(asked.procedure),
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
        is_urgent: is_null,
    },
    lock_manager(nlm::v1::VERSION, nlm::v1::VERSION),
    lock_manager(nlm::v3::VERSION, nlm::v4::VERSION),
    Entry {
        program: nsm::PROGRAM,
        versions: nsm::VERSION..=nsm::VERSION,
        needs_connection: false,
        count: |_, _| {},
        answer: |front, call, _| Box::pin(async move { crate::nlm::monitor::answer(&front.nlm, call).await }),
        turn_away: null_alone,
        reply_bytes: |_| 0,
        remember: |_| Remember::No,
        // The restart of a host frees its locks.
        is_urgent: |_| true,
    },
];

/// Versions of NLM. A lock is not remembered: after a restart it must be reclaimed, and a kept reply would
/// say that it is held.
const fn lock_manager(first: u32, last: u32) -> Entry {
    Entry {
        program: nlm::v4::PROGRAM,
        versions: first..=last,
        needs_connection: false,
        count: |_, _| {},
        answer: |front, call, _| Box::pin(async move { crate::nlm::answer(&front.nlm, call).await }),
        turn_away: null_alone,
        reply_bytes: |_| 0,
        remember: |_| Remember::No,
        is_urgent: |asked| crate::nlm::is_urgent(asked.procedure),
    }
}

impl Service for Front {
    fn call(self: Arc<Self>, mut call: Call) -> Answering {
        self.nqnfs.nqnfs.start();
        match taking(&call) {
            Ok(entry) => {
                let timing = Timing { procedure: call.header.procedure, began: Instant::now() };
                (entry.count)(&self.shared.counts, timing.procedure);
                self.shared.usage.call(call.peer.ip());
                let shared = &self.shared;
                let groups = shared.groups.get().and_then(|groups| looked_up(groups, &shared.exports, &call));
                match groups {
                    None => (entry.answer)(self, call, timing),
                    Some(Lookup::Known(groups)) => {
                        call.groups = Some(groups);
                        (entry.answer)(self, call, timing)
                    }
                    Some(Lookup::Wait(waiting)) => Box::pin(async move {
                        call.groups = Some(waiting.groups().await);
                        (entry.answer)(self, call, timing).await
                    }),
                }
            }
            Err(refusal) => Box::pin(std::future::ready(refusal.into())),
        }
    }

    /// A peer that no export admits creates no state and learns nothing about the exports.
    fn admits(&self, peer: SocketAddr, security: TransportSecurity) -> bool {
        self.shared.exports.any(|export| export.options().admits(peer, security))
    }

    /// A connection from a port that every user can have is admitted if an export accepts Kerberos. A call
    /// on it that proves nothing gets what it would have got without Kerberos.
    fn takes(&self, call: &Call) -> bool {
        let (peer, security) = (call.peer, call.security());
        peer.port() < 1024 || self.shared.exports.any(|export| export.options().takes(peer, security, false))
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

    fn is_urgent(&self, asked: &Asked) -> bool {
        find(asked.program, asked.version).is_none_or(|entry| (entry.is_urgent)(asked))
    }

    fn waits(&self, peer: SocketAddr) {
        self.shared.usage.wait(peer.ip());
    }

    fn remember(&self, call: &Call) -> Remember {
        let entry = find(call.header.program, call.header.version);
        entry.map_or(Remember::No, |entry| (entry.remember)(call))
    }
}

/// The groups of the user that calls, if they are not those of its credential. The null procedure and NSM
/// need none. Those of root count only where root stays root. Elsewhere they are not worth a wait.
fn looked_up(groups: &Groups, exports: &Exports, call: &Call) -> Option<Lookup> {
    let uid = match &call.header.credential {
        Credential::Sys(sys) => sys.uid,
        Credential::Proven(proven) => proven.user.unix.as_ref()?.uid,
        Credential::None | Credential::Gss(_) | Credential::Tls | Credential::Other(_) => return None,
    };
    if call.header.procedure == 0 || call.header.program == nsm::PROGRAM {
        return None;
    }
    let root_stays = || exports.any(|export| export.options().squash == Squash::None);
    if uid == 0 && !root_stays() {
        return Some(Lookup::Known(Arc::new([])));
    }
    Some(groups.of(uid))
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
    // NQNFS knows its clients by their AUTH_SYS names.
    if program == nqnfs::PROGRAM && matches!(call.header.credential, Credential::Proven(_)) {
        return Err(Refusal::Auth(AUTH_REJECTEDCRED));
    }
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

/// The null procedure, by which others learn that we answer.
fn is_null(asked: &Asked) -> bool {
    asked.procedure == 0
}

/// A peer that no export admits gets the answer to the null procedure and no other.
fn null_alone(_front: &Front, call: &Call) -> Outcome {
    if call.header.procedure == 0 { reply(call, &()) } else { Refusal::Auth(AUTH_TOOWEAK).into() }
}

fn until_heard(twice_is_harm: bool) -> Remember {
    if twice_is_harm { Remember::UntilHeard { sessionless: None } } else { Remember::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::exports::{Export, ExportId, ExportOptions};

    fn call_of(uid: u32, program: u32) -> Call {
        let sys = rpc::AuthSys { uid, ..rpc::AuthSys::default() };
        let credential = Credential::Sys(sys);
        Call {
            header: rpc::message::CallHeader { xid: 1, program, version: 3, procedure: 1, credential },
            arguments: xdr::Decoder::new(bytes::Bytes::new()),
            peer: SocketAddr::from(([127, 0, 0, 1], 1000)),
            connection: None,
            datagrams: None,
            resent: false,
            groups: None,
        }
    }

    #[tokio::test]
    async fn the_groups_of_a_squashed_root_are_none_without_a_look_up() {
        struct Asked;
        impl crate::UserDatabase for Asked {
            fn groups_of(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>> {
                Ok(Some(vec![uid]))
            }
        }
        let fs = Arc::new(memory::Memory::new(memory::Options::default()));
        let export = Export::new(ExportId::of("x"), "/x".to_owned(), fs, ExportOptions::default());
        let exports = Exports::new(vec![export]).unwrap();
        let groups = Groups::new(Asked);
        let of = |uid, program| looked_up(&groups, &exports, &call_of(uid, program));
        assert!(matches!(of(0, nfs3::PROGRAM), Some(Lookup::Known(groups)) if groups.is_empty()));
        assert!(of(5, nsm::PROGRAM).is_none());
        assert_eq!(groups.counts(), (0, 0));
        assert!(matches!(of(5, nfs3::PROGRAM), Some(Lookup::Wait(_))));
        let unsquashed = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        exports.iter().for_each(|export| export.set_options(unsquashed.clone()));
        assert!(matches!(of(0, nfs3::PROGRAM), Some(Lookup::Wait(_))));
    }

    /// Is a compound of these operations urgent?
    fn is_urgent(operations: Vec<nfs4::ArgOp>) -> bool {
        let compound = nfs4::CompoundArgs::new(1, operations).unwrap();
        let arguments = xdr::Decoder::new(xdr::to_bytes(&compound).unwrap());
        let asked = Asked { program: nfs4::PROGRAM, version: nfs4::VERSION, procedure: 1, arguments };
        (find(asked.program, asked.version).unwrap().is_urgent)(&asked)
    }

    #[test]
    fn what_gives_something_back_or_renews_is_urgent_unless_it_does_more() {
        use nfs4::ArgOp as A;
        let stateid = nfs4::Stateid::default();
        let sequence = || {
            A::Sequence(nfs4::SequenceArgs {
                sessionid: [0; 16],
                sequenceid: 1,
                slotid: 0,
                highest_slotid: 0,
                cachethis: false,
            })
        };
        let getattr = || A::Getattr(nfs4::GetattrArgs { attr_request: nfs4::Bitmap::default() });
        let give_back = || A::Delegreturn(nfs4::DelegreturnArgs { deleg_stateid: stateid });
        let read = || A::Read(nfs4::ReadArgs { stateid, offset: 0, count: 1 });
        assert!(is_urgent(vec![sequence()]));
        assert!(is_urgent(vec![sequence(), A::Putrootfh(()), getattr(), give_back()]));
        assert!(!is_urgent(vec![sequence(), A::Putrootfh(()), getattr()]));
        assert!(!is_urgent(vec![sequence(), A::Putrootfh(()), read(), give_back()]));
    }

    #[test]
    fn no_lock_is_overtaken_by_its_unlock_and_no_lease_ends_before_its_write() {
        use nlm::v4::Procedure as P;
        let is_urgent = |procedure: P| crate::nlm::is_urgent(procedure as u32);
        let ordered = [P::Lock, P::NmLock, P::Unlock, P::Cancel, P::Share, P::Unshare, P::FreeAll];
        assert!(ordered.into_iter().all(is_urgent) && !is_urgent(P::Test));
        let is_urgent = |procedure: nqnfs::Procedure| crate::nqnfs::is_urgent(procedure as u32);
        assert!(is_urgent(nqnfs::Procedure::Vacated) && is_urgent(nqnfs::Procedure::Write));
        assert!(!is_urgent(nqnfs::Procedure::Read));
    }

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
