//! READ_PLUS (RFC 7862, section 15.10): the data and the holes of a range.

use protocol::nfs4::{ReadPlusArgs, ReadPlusContent, ReadPlusOk, Status};
use vfs::{Extent, Share, StateidBasis};
use xdr::{Bulk, List};

use crate::bulk::bulk;
use crate::nfs4::compound::Compound;
use crate::nfs4::{TRANSFER_MAX_BYTES, kind};
use crate::shared::Object;

/// The most segments in one reply: a client asks again for the rest.
const CONTENTS_MAX: usize = 64;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ReadPlusArgs,
) -> Result<ReadPlusOk, Status> {
    let mut object = compound.object()?;
    let stateid = compound.stateid(args.stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::READ).await?;
    let count = args.count.min(TRANSFER_MAX_BYTES);
    let start = args.offset.min(i64::MAX as u64 - u64::from(count));
    let range = Range { object: &object, by, start, end: start + u64::from(count) };
    match compound.shared.past_courtesy(&object, None, || range.contents()).await {
        Ok((eof, contents)) => {
            compound.shared.count_read(&object, contents.iter().map(data_bytes).sum());
            Ok(ReadPlusOk { eof, contents: List::new(contents).ok_or(Status::ServerFault)? })
        }
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}

/// The bytes of data in a segment.
fn data_bytes(content: &ReadPlusContent) -> usize {
    match content {
        ReadPlusContent::Data { data: Bulk::Bytes(bytes), .. } => bytes.len(),
        ReadPlusContent::Data { data: Bulk::File(range), .. } => range.length as usize,
        ReadPlusContent::Hole { .. } => 0,
    }
}

struct Range<'r> {
    object: &'r Object,
    by: StateidBasis,
    start: u64,
    end: u64,
}

impl Range<'_> {
    /// The segments of the range, and whether they reach the end of the file.
    async fn contents(&self) -> vfs::Result<(bool, Vec<ReadPlusContent>)> {
        let mut contents = Vec::new();
        let mut at = self.start;
        while at < self.end && contents.len() < CONTENTS_MAX {
            let data = self.next_data(at).await?;
            if data > at {
                let hole_end = self.hole_end(data).await?;
                if hole_end <= at {
                    return Ok((true, contents));
                }
                let length = hole_end.min(self.end) - at;
                contents.push(ReadPlusContent::Hole { offset: at, length });
                at += length;
                if hole_end < data {
                    return Ok((at == hole_end, contents));
                }
                continue;
            }
            let (eof, length, content) = self.data(at).await?;
            contents.extend(content);
            at += length;
            if eof || length == 0 {
                return Ok((eof, contents));
            }
        }
        Ok((false, contents))
    }

    /// The offset of the next data from `at` on; all ones if there is none. If the file system cannot tell,
    /// everything counts as data.
    async fn next_data(&self, at: u64) -> vfs::Result<u64> {
        let Object { export, handle, caller } = self.object;
        match export.fs().seek(caller, handle, self.by, at, Extent::Data).await {
            Ok(sought) => Ok(sought.offset.max(at)),
            Err(error) if error.status == vfs::Status::Nxio => Ok(u64::MAX),
            Err(error) if error.status == vfs::Status::NotSupp => Ok(at),
            Err(error) => Err(error),
        }
    }

    /// The end of the hole before `data`: `data` itself, or the end of the file.
    async fn hole_end(&self, data: u64) -> vfs::Result<u64> {
        if data != u64::MAX {
            return Ok(data);
        }
        let Object { export, handle, caller } = self.object;
        Ok(export.fs().getattr(caller, handle).await?.size)
    }

    /// The data at `at`, up to the next hole or the end of the range.
    async fn data(&self, at: u64) -> vfs::Result<(bool, u64, Option<ReadPlusContent>)> {
        let Object { export, handle, caller } = self.object;
        let hole = match export.fs().seek(caller, handle, self.by, at, Extent::Hole).await {
            Ok(sought) if sought.offset > at => sought.offset,
            _ => self.end,
        };
        let count = (hole.min(self.end) - at) as u32;
        let read = export.fs().read(caller, handle, self.by, at, count).await?;
        let length = read.data.len() as u64;
        let content = (length > 0).then(|| ReadPlusContent::Data { offset: at, data: bulk(read.data) });
        Ok((read.eof, length, content))
    }
}
