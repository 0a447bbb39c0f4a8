//! READDIR and READDIRPLUS.

use std::sync::atomic::Ordering;

use protocol::nfs3::{self, call};
use protocol::{Call, Reply};
use vfs::{Caller, Entry, FileType, Handle, Listing, Name, ReadDir, Result, Status};

use super::Nfs3;
use crate::listing::{BYTES_MIN, EMPTY_MAX, Part, Place};
use crate::{convert, listing};

impl Nfs3 {
    pub(super) async fn read_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> Result<Listing> {
        let mut place = listing::place(&part);
        let bytes = part.bytes.clamp(BYTES_MIN, self.sizes.readdir);
        for _ in 0..EMPTY_MAX {
            let read = self.read_part(caller, directory, place, bytes, part.plus).await?;
            if read.says_something() {
                return Ok(read.listing);
            }
            let Some(next) = read.next(place) else { break };
            place = next;
        }
        Err(self.nonsense::<call::Readdir>("no entries, and not the end of the directory"))
    }

    async fn read_part(
        &self,
        caller: &Caller,
        directory: &Handle,
        from: Place,
        bytes: u32,
        plus: bool,
    ) -> Result<Part> {
        if plus && !self.without_plus.load(Ordering::Relaxed) {
            match self.read_plus(caller, directory, from, bytes).await {
                Err(failed) if failed.status == Status::NotSupp => {
                    self.without_plus.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.read_plain(caller, directory, from, bytes).await
    }

    async fn read_plain(
        &self,
        caller: &Caller,
        directory: &Handle,
        (cookie, cookieverf): Place,
        count: u32,
    ) -> Result<Part> {
        let args = nfs3::ReaddirArgs { dir: convert::to_wire(directory)?, cookie, cookieverf, count };
        let ok = match self.call::<call::Readdir>(caller, &args).await?.results {
            Reply::Ok(ok) => ok,
            Reply::Fail(status, came) => return Err(self.failed(directory, status, came)),
        };
        let came = ok.entries.into_vec();
        let last_cookie = came.last().map(|entry| entry.cookie);
        let mut entries = Vec::with_capacity(came.len());
        for entry in came {
            if let Some((name, cookie)) = self.name_of::<call::Readdir>(&entry.name, entry.cookie)? {
                entries.push(Entry { name, fileid: entry.fileid, cookie, node: None, file_type: None });
            }
        }
        let wanted = Some(FileType::Directory);
        let attributes = self.attributes_of::<call::Readdir>(directory, ok.dir_attributes, wanted)?;
        let listing = Listing {
            entries,
            verifier: ok.cookieverf,
            eof: ok.eof,
            directory: attributes,
            directory_lease: None,
        };
        Ok(Part { listing, last_cookie })
    }

    async fn read_plus(
        &self,
        caller: &Caller,
        directory: &Handle,
        (cookie, cookieverf): Place,
        bytes: u32,
    ) -> Result<Part> {
        let dir = convert::to_wire(directory)?;
        let args = nfs3::ReaddirplusArgs { dir, cookie, cookieverf, dircount: bytes, maxcount: bytes };
        let ok = match self.call::<call::Readdirplus>(caller, &args).await?.results {
            Reply::Ok(ok) => ok,
            Reply::Fail(status, came) => return Err(self.failed(directory, status, came)),
        };
        let came = ok.entries.into_vec();
        let last_cookie = came.last().map(|entry| entry.cookie);
        let mut entries = Vec::with_capacity(came.len());
        for entry in came {
            let Some((name, cookie)) = self.name_of::<call::Readdirplus>(&entry.name, entry.cookie)? else {
                continue;
            };
            let node = match entry.name_handle {
                Some(handle) => Some(self.node::<call::Readdirplus>(&handle, entry.name_attributes, None)?),
                None => None,
            };
            entries.push(Entry { name, fileid: entry.fileid, cookie, node, file_type: None });
        }
        let wanted = Some(FileType::Directory);
        let attributes = self.attributes_of::<call::Readdirplus>(directory, ok.dir_attributes, wanted)?;
        let listing = Listing {
            entries,
            verifier: ok.cookieverf,
            eof: ok.eof,
            directory: attributes,
            directory_lease: None,
        };
        Ok(Part { listing, last_cookie })
    }

    /// The name and cookie of an entry. `None` for `.` and `..`.
    fn name_of<C: Call>(&self, name: &[u8], cookie: u64) -> Result<Option<(Name, u64)>> {
        listing::name_of(name, cookie).map_err(|what| self.nonsense::<C>(what))
    }
}
