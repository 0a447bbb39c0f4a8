//! READ, WRITE and COMMIT.

use bytes::Bytes;
use protocol::nfs3::{self, call};
use vfs::{Caller, Commit, Data, FileType, Handle, Read, Result, Stability, Written};
use xdr::Bulk;

use super::Nfs3;
use crate::convert;

const REGULAR: Option<FileType> = Some(FileType::Regular);

impl Nfs3 {
    /// Sends one READ, of at most the size that both sides support. The data shares the buffer of the record
    /// that it came in.
    pub(super) async fn read_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let count = count.min(self.sizes.read);
        let _carried = self.transport.links.carry(count);
        let args = nfs3::ReadArgs { file: convert::to_wire(handle)?, offset, count };
        let ok = self.succeeded(handle, self.call::<call::Read>(caller, &args).await?.results)?;
        let attributes = self.attributes_of::<call::Read>(handle, ok.file_attributes, REGULAR)?;
        let Bulk::Bytes(data) = ok.data else { return Err(self.nonsense::<call::Read>("no data")) };
        if data.len() as u64 != u64::from(ok.count) || ok.count > count {
            let came = data.len();
            return Err(self.nonsense::<call::Read>(format_args!(
                "asked for {count} bytes, it announces {} and sends {came}",
                ok.count
            )));
        }
        let mut eof = ok.eof;
        if data.is_empty() && count > 0 && !eof {
            // No data and no end of file makes sense only at or past the end of the file.
            eof = attributes.is_some_and(|attributes| attributes.size <= offset);
            if !eof {
                return Err(self.nonsense::<call::Read>("no bytes, and not the end of the file"));
            }
        }
        Ok(Read { data: Data::Bytes(data), eof, attributes })
    }

    /// Sends one WRITE, of at most the size that both sides support. The result says how many bytes were
    /// written.
    pub(super) async fn write_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let data = data.slice(..data.len().min(self.sizes.write as usize));
        let count = data.len() as u32;
        let _carried = self.transport.links.carry(count);
        let args = nfs3::WriteArgs {
            file: convert::to_wire(handle)?,
            offset,
            count,
            stable: convert::stable(stability),
            data: Bulk::Bytes(data),
        };
        let ok = self.done(handle, self.call::<call::Write>(caller, &args).await?.results)?;
        let wcc = self.wcc_of::<call::Write>(handle, ok.file_wcc, REGULAR)?;
        if ok.count > count || (ok.count == 0 && count > 0) {
            return Err(
                self.nonsense::<call::Write>(format_args!("sent {count} bytes, it wrote {}", ok.count))
            );
        }
        let committed = convert::stability(ok.committed);
        if committed < stability {
            return Err(self.nonsense::<call::Write>(format_args!("{stability:?} asked, {committed:?} done")));
        }
        Ok(Written { count: ok.count, stability: committed, verifier: ok.verf, wcc })
    }

    pub(super) async fn commit_data(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Commit> {
        let args = nfs3::CommitArgs { file: convert::to_wire(handle)?, offset, count };
        let ok = self.done(handle, self.call::<call::Commit>(caller, &args).await?.results)?;
        Ok(Commit { verifier: ok.verf, wcc: self.wcc_of::<call::Commit>(handle, ok.file_wcc, REGULAR)? })
    }
}
