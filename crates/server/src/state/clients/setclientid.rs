//! SETCLIENTID and SETCLIENTID_CONFIRM (RFC 7530, sections 16.33 and 16.34).

use bytes::Bytes;
use protocol::nfs4::{Clientid, Netaddr, Status, Verifier};
use tokio::time::Instant;

use super::{Client, ClientName, Clients, Generation, Gone, Maker, Way};

/// The address at which a client of minor version 0 wants callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallbackAddress {
    /// Program number.
    pub(crate) program: u32,
    pub(crate) location: Netaddr,
    /// The server sends it with each callback.
    pub(crate) ident: u32,
}

/// The request of SETCLIENTID.
#[derive(Clone, Debug)]
pub(crate) struct Setclientid {
    pub(crate) ownerid: Bytes,
    pub(crate) verifier: Verifier,
    pub(crate) maker: Maker,
    pub(crate) callback: CallbackAddress,
}

/// The result of SETCLIENTID_CONFIRM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmed {
    /// The incarnation that was replaced.
    pub(crate) replaced: Option<Gone>,
    /// The callback address has changed.
    pub(crate) callback_changed: bool,
}

impl Clients {
    /// SETCLIENTID: returns an id and the verifier that confirms it.
    ///
    /// # Errors
    /// `ClidInuse`, with the address of the client that has the name if the requester reaches that client;
    /// `Resource`.
    pub(crate) fn setclientid(
        &mut self,
        request: Setclientid,
        now: Instant,
        has_state: impl Fn(Clientid) -> bool,
    ) -> Result<(Clientid, Verifier), (Status, Option<Netaddr>)> {
        let name = ClientName { generation: Generation::Minor0, ownerid: request.ownerid };
        if self.is_reserved(&name, &request.maker) {
            return Err((Status::ClidInuse, Some(Netaddr::default())));
        }
        let confirmed = self.named(&name).0.map(|client| (client.clone(), client.way.clone()));
        if let Some((client, Way::Minor0 { callback, .. })) = &confirmed
            && !client.maker.is(&request.maker)
            && !self.is_courtesy(client.id, now)
        {
            if !client.maker.is_reached_by(&request.maker) {
                return Err((Status::ClidInuse, Some(Netaddr::default())));
            }
            if has_state(client.id) {
                return Err((Status::ClidInuse, Some(callback.location.clone())));
            }
        }
        if !self.has_capacity() {
            return Err((Status::Resource, None));
        }
        // The same incarnation changes its callback under its present id; any other incarnation gets a new
        // id.
        let same = confirmed
            .map(|(client, _)| client)
            .filter(|client| client.verifier == request.verifier && client.maker.is(&request.maker));
        let (id, holder) = match same {
            Some(client) => (client.id, client.holder),
            None => (self.next_id(), self.next_holder()),
        };
        let confirm = self.next_verifier();
        self.enter(Client {
            id,
            name,
            verifier: request.verifier,
            maker: request.maker,
            holder,
            renewed: now,
            recorded: false,
            reclaim_complete: false,
            way: Way::Minor0 { confirm, callback: request.callback },
        });
        Ok((id, confirm))
    }

    /// SETCLIENTID_CONFIRM.
    ///
    /// # Errors
    /// `StaleClientid` if no record that the peer reaches has this id and verifier. `ClidInuse` if the
    /// record belongs to another principal, or if the client that has the name got state since SETCLIENTID.
    /// `Resource` if there are too many clients.
    pub(crate) fn setclientid_confirm(
        &mut self,
        (id, confirm): (Clientid, Verifier),
        maker: &Maker,
        now: Instant,
        has_state: impl Fn(Clientid) -> bool,
    ) -> Result<Confirmed, Status> {
        let name = self.ids.get(&id).cloned().ok_or(Status::StaleClientid)?;
        let (confirmed, unconfirmed) = self.named(&name);
        let is_it = |client: &&Client| {
            client.id == id && matches!(client.way, Way::Minor0 { confirm: own, .. } if own == confirm)
        };
        let (confirmed_matches, unconfirmed) = (confirmed.filter(is_it), unconfirmed.filter(is_it));
        let client = unconfirmed.or(confirmed_matches).ok_or(Status::StaleClientid)?;
        if !client.maker.is_reached_by(maker) {
            return Err(Status::StaleClientid);
        }
        if client.maker.principal != maker.principal {
            return Err(Status::ClidInuse);
        }
        if unconfirmed.is_none() {
            self.renew(id, now); // a repeated confirmation
            return Ok(Confirmed::default());
        }
        match confirmed {
            Some(other)
                if !other.maker.is(maker) && has_state(other.id) && !self.is_courtesy(other.id, now) =>
            {
                return Err(Status::ClidInuse);
            }
            None if !self.has_capacity() => return Err(Status::Resource),
            _ => {}
        }
        let updates = confirmed.is_some_and(|confirmed| confirmed.id == id);
        if updates {
            return Ok(self.update_callback(&name, now));
        }
        Ok(Confirmed { replaced: self.confirm(&name, now), callback_changed: true })
    }

    /// Keeps the record and gives it the callback address of the unconfirmed one.
    fn update_callback(&mut self, name: &ClientName, now: Instant) -> Confirmed {
        if let Some(named) = self.names.get_mut(name)
            && let Some(update) = named.unconfirmed.take()
            && let Some(client) = &mut named.confirmed
        {
            self.unconfirmed.remove(update.id);
            client.way = update.way;
            client.renewed = now;
        }
        Confirmed { replaced: None, callback_changed: true }
    }
}
