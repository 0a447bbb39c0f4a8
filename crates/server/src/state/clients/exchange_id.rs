//! EXCHANGE_ID, and the part of CREATE_SESSION that confirms a client (RFC 8881, sections 18.35.4 and
//! 18.36.4).

use bytes::Bytes;
use protocol::nfs4::{Clientid, CreateSessionOk, Status, Verifier};
use tokio::time::Instant;

use super::{Client, ClientName, Clients, Generation, Gone, Maker, Named, Principal, Way};

/// The result of EXCHANGE_ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchanged {
    pub(crate) id: Clientid,
    /// The sequence id of the next CREATE_SESSION.
    pub(crate) sequence: u32,
    pub(crate) confirmed: bool,
    /// The client of another principal that had the name and held nothing.
    pub(crate) replaced: Option<Gone>,
}

/// How a CREATE_SESSION relates to the client's last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionConfirm {
    /// It is the next one: execute it.
    Next,
    /// It is a retry of the last one, which had this result.
    Replay(CreateSessionOk),
    /// As `Replay`, but the last one came from another principal.
    OfAnother(CreateSessionOk),
}

impl Clients {
    /// EXCHANGE_ID. `update` is `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
    ///
    /// # Errors
    /// `NoEnt`, `NotSame` and `Perm` for an update; `ClidInuse`; `Delay` if there are too many clients.
    pub(crate) fn exchange_id(
        &mut self,
        (ownerid, verifier): (Bytes, Verifier),
        maker: Maker,
        update: bool,
        now: Instant,
        has_state: impl Fn(Clientid) -> bool,
    ) -> Result<Exchanged, Status> {
        let name = ClientName { generation: Generation::Sessions, ownerid };
        if self.is_reserved(&name, &maker) {
            return Err(Status::ClidInuse);
        }
        let mut replaced = None;
        if let Some(client) = self.named(&name).0 {
            let (same_verifier, same_maker) = (client.verifier == verifier, client.maker.is(&maker));
            let is_strange = !client.maker.is_reached_by(&maker);
            match (update, same_maker, same_verifier) {
                (true, false, _) => return Err(Status::Perm),
                (true, true, false) => return Err(Status::NotSame),
                (_, true, true) => return Ok(self.known(&name)),
                (false, true, false) => {} // restarted: keep the old record until the new one is confirmed
                (false, false, _)
                    if (is_strange || has_state(client.id)) && !self.is_courtesy(client.id, now) =>
                {
                    return Err(Status::ClidInuse);
                }
                (false, false, _) => replaced = Some(client.id),
            }
        } else if update {
            return Err(Status::NoEnt);
        }
        if !self.has_capacity() {
            return Err(Status::Delay);
        }
        let replaced = replaced.and_then(|id| self.remove(id));
        let (id, holder) = (self.next_id(), self.next_holder());
        self.enter(Client {
            id,
            name,
            verifier,
            maker,
            holder,
            renewed: now,
            recorded: false,
            reclaim_complete: false,
            way: Way::Sessions { sequence: 0, created: None },
        });
        Ok(Exchanged { id, sequence: 1, confirmed: false, replaced })
    }

    /// The confirmed record of a name, unchanged.
    fn known(&self, name: &ClientName) -> Exchanged {
        let (id, sequence) = match self.named(name).0 {
            Some(Client { id, way: Way::Sessions { sequence, .. }, .. }) => (*id, *sequence),
            _ => (0, 0),
        };
        Exchanged { id, sequence: sequence.wrapping_add(1), confirmed: true, replaced: None }
    }

    /// Is this CREATE_SESSION the client's next?
    ///
    /// # Errors
    /// `StaleClientid`, also if the peer does not reach the record; `SeqMisordered`. `ClidInuse` if the
    /// record is unconfirmed and belongs to another principal. `Delay` if confirming it would exceed the
    /// limit of clients.
    pub(crate) fn session_sequence(
        &self,
        id: Clientid,
        given: u32,
        maker: &Maker,
    ) -> Result<SessionConfirm, Status> {
        let (client, confirmed) = self.with_sessions(id).ok_or(Status::StaleClientid)?;
        let Way::Sessions { sequence, created } = &client.way else { return Err(Status::StaleClientid) };
        if !client.maker.is_reached_by(maker) {
            return Err(Status::StaleClientid);
        }
        match created {
            _ if given == sequence.wrapping_add(1) => {}
            Some((created, to)) if given == *sequence && *to == maker.principal => {
                return Ok(SessionConfirm::Replay(*created));
            }
            Some((created, _)) if given == *sequence => return Ok(SessionConfirm::OfAnother(*created)),
            _ => return Err(Status::SeqMisordered),
        }
        // A proven principal keeps its record for itself.
        let is_proven = |principal| matches!(principal, Principal::Kerberos(_));
        let proven = is_proven(client.maker.principal) || is_proven(maker.principal);
        if (proven || !confirmed) && client.maker.principal != maker.principal {
            return Err(Status::ClidInuse);
        }
        // A record that replaces the confirmed one of its name needs no capacity.
        if !confirmed && self.named(&client.name).0.is_none() && !self.has_capacity() {
            return Err(Status::Delay);
        }
        Ok(SessionConfirm::Next)
    }

    /// Confirms the client if it is unconfirmed, and returns the incarnation that it replaces.
    pub(crate) fn confirm_by_session(&mut self, id: Clientid, now: Instant) -> Option<Gone> {
        let name = self.ids.get(&id)?.clone();
        self.renew(id, now);
        let is_unconfirmed = self.named(&name).1.is_some_and(|client| client.id == id);
        if is_unconfirmed { self.confirm(&name, now) } else { None }
    }

    /// Stores the result of a CREATE_SESSION for retries and advances the sequence. A CREATE_SESSION that
    /// fails advances nothing.
    pub(crate) fn session_created(&mut self, id: Clientid, given: CreateSessionOk, to: Principal) {
        let Some(named) = self.ids.get(&id).and_then(|name| self.names.get_mut(name)) else { return };
        let Named { confirmed, unconfirmed } = named;
        let client = [confirmed, unconfirmed].into_iter().flatten().find(|client| client.id == id);
        if let Some(Client { way: Way::Sessions { sequence, created }, .. }) = client {
            *sequence = sequence.wrapping_add(1);
            *created = Some((given, to));
        }
    }

    /// A record of a client with sessions, and whether it is confirmed.
    fn with_sessions(&self, id: Clientid) -> Option<(&Client, bool)> {
        let (confirmed, unconfirmed) = self.named(self.ids.get(&id)?);
        let confirmed = confirmed.filter(|client| client.id == id).map(|client| (client, true));
        confirmed.or(unconfirmed.filter(|client| client.id == id).map(|client| (client, false)))
    }
}
