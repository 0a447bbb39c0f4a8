//! BIND_CONN_TO_SESSION (RFC 8881, section 18.34).

use protocol::nfs4::{
    BindConnToSessionArgs, BindConnToSessionOk, ChannelDirFromClient, ChannelDirFromServer, Status,
};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::Channel;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: BindConnToSessionArgs,
) -> Result<BindConnToSessionOk, Status> {
    // A client that accepts both channels gets both: callbacks then have one more connection.
    let (dir, back) = match args.dir {
        ChannelDirFromClient::Fore => (ChannelDirFromServer::Fore, false),
        ChannelDirFromClient::Back => (ChannelDirFromServer::Back, true),
        ChannelDirFromClient::ForeOrBoth | ChannelDirFromClient::BackOrBoth => {
            (ChannelDirFromServer::Both, true)
        }
    };
    let connection = compound.call.connection.as_ref().ok_or(Status::Inval)?;
    let peer = compound.maker();
    let mut tables = compound.shared.state.tables();
    let client = tables.sessions.bind(args.sessid, (Channel::new(connection), back), &peer)?;
    tables.clients.renew(client, Instant::now());
    Ok(BindConnToSessionOk { sessid: args.sessid, dir, use_conn_in_rdma_mode: false })
}
