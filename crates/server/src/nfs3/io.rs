//! READ, WRITE, COMMIT (RFC 1813, sections 3.3.6, 3.3.7 and 3.3.21).

use protocol::nfs3::{CommitArgs, CommitOk, ReadArgs, ReadOk, WriteArgs, WriteOk};
use vfs::{StateidBasis, Status};
use xdr::Bulk;

use super::convert::{fattr, stability, stable_how, wcc_data};
use super::{DATAGRAM_TRANSFER_MAX_BYTES, TRANSFER_MAX_BYTES};
use crate::bulk::bulk;
use crate::shared::{Object, Request};

pub(super) async fn read(request: &Request<'_>, args: ReadArgs) -> vfs::Result<ReadOk> {
    let object = request.object(&args.file)?;
    let Object { export, handle, caller } = &object;
    let most = if request.datagram { DATAGRAM_TRANSFER_MAX_BYTES } else { TRANSFER_MAX_BYTES };
    let count = args.count.min(most);
    let read = || export.fs().read(caller, handle, StateidBasis::Anonymous, args.offset, count);
    let read = request.shared.past_courtesy(&object, None, read).await?;
    request.shared.count_read(&object, read.data.len());
    if read.data.is_empty() && !read.eof && args.count > 0 {
        // Linux takes such a reply as an I/O error. No back end should return it.
        tracing::warn!(
            offset = args.offset,
            count = args.count,
            "a READ before the end of the file brought nothing"
        );
    }
    Ok(ReadOk {
        file_attributes: read.attributes.as_ref().map(|it| fattr(export, it)),
        count: read.data.len() as u32,
        eof: read.eof,
        data: bulk(read.data),
    })
}

pub(super) async fn write(request: &Request<'_>, args: WriteArgs) -> vfs::Result<WriteOk> {
    let object = request.writable(&args.file)?;
    let Object { export, handle, caller } = &object;
    let Bulk::Bytes(mut data) = args.data else { return Err(Status::ServerFault.into()) };
    if data.len() < args.count as usize {
        return Err(Status::Inval.into());
    }
    data.truncate(args.count as usize);
    if args.offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Status::FBig.into());
    }
    let stable = stability(args.stable);
    let write =
        || export.fs().write(caller, handle, StateidBasis::Anonymous, args.offset, data.clone(), stable);
    let written = request.shared.past_courtesy(&object, None, write).await?;
    request.shared.count_written(&object, written.count as usize);
    Ok(WriteOk {
        file_wcc: wcc_data(export, &written.wcc),
        count: written.count,
        committed: stable_how(written.stability),
        verf: written.verifier,
    })
}

pub(super) async fn commit(request: &Request<'_>, args: CommitArgs) -> vfs::Result<CommitOk> {
    let Object { export, handle, caller } = request.writable(&args.file)?;
    let commit = export.fs().commit(&caller, &handle, args.offset, args.count).await?;
    Ok(CommitOk { file_wcc: wcc_data(&export, &commit.wcc), verf: commit.verifier })
}
