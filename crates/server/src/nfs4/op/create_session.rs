//! CREATE_SESSION (RFC 8881, section 18.36).

use protocol::nfs4::{
    CREATE_SESSION4_FLAG_CONN_BACK_CHAN, CREATE_SESSION4_FLAG_CONN_RDMA, CREATE_SESSION4_FLAG_PERSIST,
    CallbackSecParms, ChannelAttrs, CreateSessionArgs, CreateSessionOk, Sessionid, Status,
};
use rpc::{AuthSys, Credential};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::Channel;
use crate::state::clients::{Gone, SessionConfirm};
use crate::state::maker::Maker;
use crate::state::sessions::{CallbackTerms, negotiated_back, negotiated_fore};
use crate::state::{Scarce, Tables};

const KNOWN: u32 =
    CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN | CREATE_SESSION4_FLAG_CONN_RDMA;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: CreateSessionArgs,
) -> Result<CreateSessionOk, Status> {
    if args.flags & !KNOWN != 0 {
        return Err(Status::Inval);
    }
    let channels = (negotiated_fore(&args.fore_chan_attrs)?, negotiated_back(&args.back_chan_attrs)?);
    let shared = compound.shared;
    // If there is no capacity, the creation below fails.
    shared.capacity_for(Scarce::Sessions).await;
    let mut attempt = confirm(compound, &args, channels);
    if matches!(attempt, Err(Status::Delay)) && shared.capacity_for(Scarce::Clients).await {
        attempt = confirm(compound, &args, channels);
    }
    let (created, replaced) = attempt?;
    if let Some(replaced) = replaced {
        shared.release(replaced).await;
    }
    Ok(created)
}

/// Creates the session, which confirms its client, or returns the session of a retry. Also returns the
/// incarnation that was replaced.
fn confirm(
    compound: &Compound<'_>,
    args: &CreateSessionArgs,
    channels: (ChannelAttrs, ChannelAttrs),
) -> Result<(CreateSessionOk, Option<Gone>), Status> {
    let mut tables = compound.shared.state.tables();
    let maker = compound.maker();
    let by = maker.principal;
    match tables.clients.session_sequence(args.clientid, args.sequence, &maker)? {
        SessionConfirm::Replay(created) => return Ok((created, None)),
        // Over a connection of that session the reply discloses nothing new.
        SessionConfirm::OfAnother(created) if is_bound(compound, &tables, created.sessionid) => {
            return Ok((created, None));
        }
        SessionConfirm::OfAnother(_) => return Err(Status::ClidInuse),
        SessionConfirm::Next => {}
    }
    let created = create(compound, &mut tables, args, channels, maker)?;
    let replaced = tables.clients.confirm_by_session(args.clientid, Instant::now());
    tables.clients.session_created(args.clientid, created, by);
    Ok((created, replaced))
}

fn is_bound(compound: &Compound<'_>, tables: &Tables, id: Sessionid) -> bool {
    let connection = compound.call.connection.as_ref().map(Channel::new);
    connection
        .is_some_and(|connection| tables.sessions.get(id).is_some_and(|session| session.has(&connection)))
}

fn create(
    compound: &Compound<'_>,
    tables: &mut Tables,
    args: &CreateSessionArgs,
    channels: (ChannelAttrs, ChannelAttrs),
    maker: Maker,
) -> Result<CreateSessionOk, Status> {
    let flags = args.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
    let connection =
        compound.call.connection.as_ref().map(|connection| (Channel::new(connection), flags != 0));
    let callbacks = CallbackTerms {
        program: args.cb_program,
        credential: credential(&args.sec_parms),
        minor: compound.minor,
    };
    let (fore, back) = channels;
    let channels = (tables.sessions.granted(fore, &maker), back);
    let sessionid = tables.sessions.create(args.clientid, channels, callbacks, maker, connection)?;
    let (fore_chan_attrs, back_chan_attrs) = channels;
    Ok(CreateSessionOk { sessionid, sequence: args.sequence, flags, fore_chan_attrs, back_chan_attrs })
}

/// The first offered credential that the server supports; AUTH_NONE if it supports none.
pub(super) fn credential(offered: &[CallbackSecParms]) -> Credential {
    let spoken = offered.iter().find_map(|parms| match parms {
        CallbackSecParms::AuthNone => Some(Credential::None),
        CallbackSecParms::AuthSys(sys) => Some(Credential::Sys(AuthSys {
            stamp: sys.stamp,
            machine: sys.machinename.clone(),
            uid: sys.uid,
            gid: sys.gid,
            gids: sys.gids.clone(),
        })),
        CallbackSecParms::RpcsecGss(_) => None,
    });
    spoken.unwrap_or(Credential::None)
}
