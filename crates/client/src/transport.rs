//! Calls to the origin: over several links, with the caller's credential, within the mount options and the
//! caller's deadline. A call is repeated while the origin answers JUKEBOX.

use std::time::Duration;

use bytes::Bytes;
use protocol::{Call, nfs3};
use rpc::message::Refusal;
use rpc::{AuthSys, CallError, Patience};
use tokio::time::{Instant, sleep_until};
use vfs::{Caller, Principal, Result, Status};
use xdr::{Decode, Decoder, Encode, Encoder, List, Message, Opaque};

use crate::callers::{Callers, Unsent};
use crate::counts::Counting;
use crate::links::Links;
use crate::nonsense::Nonsense;
use crate::pulse::Pulse;

/// The first pause after JUKEBOX. Each further one is twice as long.
const JUKEBOX_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const JUKEBOX_MAX: Duration = Duration::from_secs(5);
/// Most groups in an AUTH_SYS credential.
pub(crate) const GROUPS_MAX: usize = 16;

/// The connections to one origin.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) links: Links,
    callers: Callers,
    /// How long a call may take on a `soft` mount.
    soft: Option<Duration>,
    pub(crate) counting: Counting,
    pub(crate) pulse: Pulse,
    pub(crate) nonsense: Nonsense,
}

/// Results, and whether the call may have been executed before the execution that they describe.
pub(crate) struct Answered<T> {
    pub(crate) results: T,
    pub(crate) again: bool,
}

impl Transport {
    pub(crate) fn new(
        links: Links,
        callers: Callers,
        soft: Option<Duration>,
        nonsense: Nonsense,
    ) -> Transport {
        let counting = Counting::default();
        Transport { links, callers, soft, counting, pulse: Pulse::default(), nonsense }
    }

    /// The number of calls that wait for an answer.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.links.calls_in_flight()
    }

    /// Makes a call and decodes its results, which may be any failure that the origin reports except JUKEBOX.
    ///
    /// # Errors
    /// `Delay` if the caller's deadline passes. `Io` if the patience of a `soft` mount ends, if the origin
    /// refuses the call, or if its answer does not decode. `Access` if the origin rejects the credential.
    pub(crate) async fn call<C: Call>(
        &self,
        caller: &Caller,
        args: &C::Args,
    ) -> Result<Answered<C::Results>> {
        let arguments = encode(args);
        let mut again = caller.resent;
        let mut pause = JUKEBOX_MIN;
        loop {
            let outgoing = Unsent {
                program: C::PROGRAM,
                version: C::VERSION,
                procedure: C::NUMBER,
                arguments: arguments.clone(),
                needs_no_right: needs_no_right(C::NUMBER),
            };
            let answer = self.once(caller, outgoing, C::NAME).await?;
            again |= answer.retransmitted;
            if !is_jukebox(&answer.results) {
                let results = C::Results::decode(&mut answer.results.clone())
                    .map_err(|error| self.nonsense.heard(C::NAME, error))?;
                return Ok(Answered { results, again });
            }
            let until = Instant::now() + pause;
            pause = (pause * 2).min(JUKEBOX_MAX);
            match caller.deadline {
                Some(deadline) if deadline <= until => {
                    sleep_until(deadline).await;
                    return Err(Status::Delay.into());
                }
                _ => sleep_until(until).await,
            }
        }
    }

    /// Makes one call, and returns any answer.
    async fn once(&self, caller: &Caller, outgoing: Unsent, name: &'static str) -> Result<rpc::Answer> {
        let number = outgoing.procedure;
        let started = Instant::now();
        if caller.deadline.is_some_and(|deadline| deadline <= started) {
            return Err(Status::Delay.into());
        }
        let soft = self.soft.map(|soft| started + soft);
        let patience =
            [soft, caller.deadline].into_iter().flatten().min().map_or(Patience::Hard, Patience::Until);
        self.counting.called(number, outgoing.arguments.len());
        let link = self.links.get(self.links.turn());
        let on = (link, &self.pulse);
        match self.callers.call(on, &caller.principal, outgoing, patience).await {
            Ok(answer) => {
                let (bytes, took) = (answer.results.remaining(), started.elapsed());
                self.links.answered(took);
                self.counting.answered(number, bytes, took, answer.retransmitted);
                Ok(answer)
            }
            Err(error) => {
                self.counting.failed(number);
                let by_deadline = patience == caller.deadline.map_or(Patience::Hard, Patience::Until);
                Err(self.failure(&error, by_deadline, name))
            }
        }
    }

    /// Converts failures of RPC. They are mapped only here.
    fn failure(&self, error: &CallError, by_deadline: bool, name: &'static str) -> vfs::Error {
        match error {
            CallError::TimedOut if by_deadline => Status::Delay.into(),
            CallError::Refused(Refusal::Auth(_)) => Status::Access.into(),
            CallError::Context(_) => Status::NoTicket.into(),
            CallError::Refused(Refusal::ProcedureUnavailable) => Status::NotSupp.into(),
            CallError::Refused(_) | CallError::Malformed(_) => self.nonsense.heard(name, error),
            CallError::TimedOut | CallError::TooLarge(_) | CallError::Closed => {
                tracing::debug!(procedure = name, %error, "a call failed");
                Status::Io.into()
            }
        }
    }
}

/// Needs the procedure no right? Attributes of a file go to everybody who has its handle.
fn needs_no_right(procedure: u32) -> bool {
    use nfs3::Procedure as P;
    matches!(P::try_from(procedure), Ok(P::Getattr | P::Fsstat | P::Fsinfo | P::Pathconf))
}

/// Is the status JUKEBOX? All results of version 3 begin with the status.
fn is_jukebox(results: &Decoder) -> bool {
    results.clone().u32().is_ok_and(|status| nfs3::Status::from(status) == nfs3::Status::Jukebox)
}

fn encode<T: Encode>(args: &T) -> Message {
    let mut encoder = Encoder::with_capacity(160);
    args.encode(&mut encoder);
    encoder.finish()
}

/// The AUTH_SYS credential of a principal. Groups beyond the sixteenth are dropped: [`crate::groups`] has put
/// those first that matter.
pub(crate) fn credential(principal: &Principal, machine: Opaque<255>) -> AuthSys {
    match principal {
        Principal::Machine => AuthSys { machine, ..AuthSys::default() },
        Principal::Unix(unix) => {
            let groups = unix.groups.iter().copied().take(GROUPS_MAX).collect();
            let gids = List::new(groups).unwrap_or_default();
            AuthSys { stamp: 0, machine, uid: unix.uid, gid: unix.gid, gids }
        }
    }
}

/// The name of this machine.
pub(crate) fn machine_name() -> Opaque<255> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    Opaque::new(Bytes::copy_from_slice(name.trim_ascii())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_hold_sixteen_groups() {
        let groups: Vec<u32> = (0..40).collect();
        let Caller { principal, .. } = Caller::unix(7, 8, &groups);
        let sys = credential(&principal, Opaque::default());
        assert_eq!((sys.uid, sys.gid, &sys.gids[..]), (7, 8, &groups[..16]));
        assert_eq!(credential(&Principal::Machine, Opaque::default()), AuthSys::default());
    }
}
