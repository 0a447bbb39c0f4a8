//! LISTXATTRS (RFC 8276, section 8.4.3).

use protocol::nfs4::{Component, ListxattrsArgs, ListxattrsOk, Status};
use xdr::{List, padding};

use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::shared::Object;

/// Cookie, number of names, end.
const FRAME_BYTES: u32 = 8 + 4 + 4;
/// Upper limit of a reply, whatever the client requests: the most that Linux can have.
const ANSWER_MAX_BYTES: u32 = 128 << 10;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ListxattrsArgs,
) -> Result<ListxattrsOk, Status> {
    let Object { export, handle, caller } = compound.extended()?;
    let capacity = args.maxcount.min(ANSWER_MAX_BYTES).checked_sub(FRAME_BYTES).ok_or(Status::TooSmall)?;
    let listed =
        export.fs().listxattrs(&caller, &handle, args.cookie, capacity).await.map_err(convert::error)?;
    let bytes: usize = listed.names.iter().map(|name| wire_bytes(name.as_bytes())).sum();
    if bytes > capacity as usize {
        return Err(Status::TooSmall);
    }
    let names = listed.names.iter().filter_map(|name| Component::new(name.as_bytes().to_vec())).collect();
    Ok(ListxattrsOk {
        cookie: listed.cookie,
        names: List::new(names).ok_or(Status::ServerFault)?,
        eof: listed.eof,
    })
}

fn wire_bytes(name: &[u8]) -> usize {
    4 + name.len() + padding(name.len())
}
