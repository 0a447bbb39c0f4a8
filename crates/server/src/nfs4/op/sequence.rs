//! SEQUENCE (RFC 8881, section 18.46).

use std::hash::Hasher;

use protocol::nfs4::{
    CompoundHeader, SEQ4_STATUS_CB_PATH_DOWN, SEQ4_STATUS_CB_PATH_DOWN_SESSION,
    SEQ4_STATUS_RECALLABLE_STATE_REVOKED, SequenceArgs, SequenceOk, Status,
};
use rpc::rpcsec_gss::RPCSEC_GSS;
use rpc::{Call, Credential};
use siphasher::sip::SipHasher24;
use tokio::time::Instant;
use xdr::{Decode, Encode, Encoder};

use crate::nfs4::compound::Compound;
use crate::state::sessions::{Arriving, Begun, Digest};
use crate::state::{Channel, Slot, Tables};

/// Bytes of a request that the digest covers.
const DIGEST_BYTES: usize = 1024;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SequenceArgs,
) -> Result<SequenceOk, Status> {
    let arriving = Arriving {
        sequence: args,
        digest: digest(compound.call),
        bytes: compound.request_bytes(),
        operations: compound.operations,
    };
    let channel = Channel::new(compound.call.connection.as_ref().ok_or(Status::Inval)?);
    let state = &compound.shared.state;
    let mut tables = state.tables();
    let begun = match tables.sessions.begin(&arriving, &channel) {
        Err(Status::ConnNotBoundToSession) => {
            tables.sessions.join(args.sessionid, channel.clone(), &compound.maker())?;
            tables.sessions.begin(&arriving, &channel)?
        }
        begun => begun?,
    };
    let (client, fore, highest_slotid, target_highest_slotid) = match begun {
        Begun::Execute { client, fore, highest_slot, target_highest_slot } => {
            (client, fore, highest_slot, target_highest_slot)
        }
        Begun::Replay(body) => {
            compound.replay = Some(body);
            return Err(Status::SeqFalseRetry); // never sent: the replay is the answer
        }
    };
    tables.clients.renew(client, Instant::now());
    let holder = tables.clients.confirmed(client).map(|client| client.holder);
    let status_flags = status_flags(&tables, &args, client);
    drop(tables);
    compound.slot = Some(Slot {
        session: args.sessionid,
        number: args.slotid,
        reply_bytes_max: fore.maxresponsesize,
        cached_bytes_max: args.cachethis.then_some(fore.maxresponsesize_cached),
        state: state.clone(),
        completed: false,
    });
    compound.set_holder(holder);
    Ok(SequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid,
        target_highest_slotid,
        status_flags,
    })
}

fn status_flags(tables: &Tables, args: &SequenceArgs, client: u64) -> u32 {
    let mut flags = 0;
    let down = tables
        .sessions
        .get(args.sessionid)
        .is_some_and(|session| session.had_way_back && !session.has_way_back());
    if down {
        flags |= SEQ4_STATUS_CB_PATH_DOWN_SESSION;
        if !tables.sessions.of(client).any(|(_, session)| session.has_way_back()) {
            flags |= SEQ4_STATUS_CB_PATH_DOWN;
        }
    }
    if tables.stateids.has_revoked(client) {
        flags |= SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
    }
    flags
}

/// Distinguishes requests with the same sequence id: a digest of the credential and of the operations after
/// SEQUENCE. The tag is not part of it, because a retry may have another tag.
fn digest(call: &Call) -> Digest {
    let mut hasher = SipHasher24::new();
    if let Credential::Proven(proven) = &call.header.credential {
        hasher.write_u32(RPCSEC_GSS);
        hasher.write_u32(proven.protection as u32);
        hasher.write_usize(proven.user.principal.len());
        hasher.write(proven.user.principal.as_bytes());
    } else {
        let mut encoder = Encoder::new();
        call.header.credential.encode(&mut encoder);
        hasher.write(&encoder.finish().first);
    }
    let mut decoder = call.arguments.clone();
    let header = CompoundHeader::decode(&mut decoder);
    if let Ok(mut header) = header
        && header.next(&mut decoder).is_some()
    {
        let rest = decoder.rest();
        hasher.write_usize(rest.len());
        hasher.write(&rest[..rest.len().min(DIGEST_BYTES)]);
    }
    Digest(hasher.finish())
}
