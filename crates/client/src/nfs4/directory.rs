//! READDIR.

use protocol::nfs4::{
    Attr, Bitmap, Entry as WireEntry, Fattr, Op, Operation, ReaddirArgs, Status as Wire, op,
};
use vfs::{Caller, Entry, Handle, Listing, Name, Node, ReadDir, Result, Status, Verifier};

use super::attributes::{getattr_all, put};
use super::execute::Plan;
use super::state::{State, Used};
use super::{Inner, convert};
use crate::cookie;

/// Room for any entry: nothing smaller is asked for.
const BYTES_MIN: u32 = 4096;
/// So many answers in a row may be without an entry to pass on.
const EMPTY_MAX: u32 = 4;

/// Of each entry, if no more is wanted.
const NAMES: Bitmap = Bitmap::of(&[Attr::RdattrError, Attr::Fileid, Attr::MountedOnFileid]);
/// Of each entry, besides all attributes.
const PLUS: Bitmap = Bitmap::of(&[Attr::RdattrError, Attr::Filehandle, Attr::MountedOnFileid]);

/// An answer.
struct Part {
    listing: Listing,
    /// The origin's, of the last entry.
    last_cookie: Option<u64>,
}

impl Inner {
    pub(super) async fn read_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> Result<Listing> {
        let mut cookie = cookie::to_origin(part.cookie);
        let mut verifier = if cookie == 0 { [0; 8] } else { part.verifier };
        let bytes = part.bytes.clamp(BYTES_MIN, self.export().read_max.max(BYTES_MIN));
        for _ in 0..EMPTY_MAX {
            let read = self.read_part(caller, directory, (cookie, verifier), bytes, part.plus).await?;
            if !read.listing.entries.is_empty() || read.listing.eof {
                return Ok(read.listing);
            }
            match read.last_cookie {
                Some(last) if last != cookie => (cookie, verifier) = (last, read.listing.verifier),
                _ => break,
            }
        }
        Err(self.nonsense(Operation::Readdir, "no entries, and not the end of the directory"))
    }

    async fn read_part(
        &self,
        caller: &Caller,
        directory: &Handle,
        (cookie, cookieverf): (u64, Verifier),
        bytes: u32,
        plus: bool,
    ) -> Result<Part> {
        let attr_request = if plus { convert::ATTRIBUTES | PLUS } else { NAMES };
        let args = ReaddirArgs { cookie, cookieverf, dircount: bytes, maxcount: bytes, attr_request };
        let build =
            |_: &State| Ok((vec![put(directory)?, getattr_all(), op::Readdir::with(args)], Used::Nothing));
        let mut results = self.run(caller, Plan::reading(Operation::Readdir), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        // Long results come last: see `read_data`.
        let attributes = self.take_attributes(&mut results, directory, None)?;
        let ok = results.take::<op::Readdir>().map_err(|error| match error.status() {
            // The verifier is of another listing.
            Some(Wire::NotSame) => Status::BadCookie.into(),
            _ => self.failed(&error),
        })?;
        let came = ok.entries.into_vec();
        let last_cookie = came.last().map(|entry| entry.cookie);
        let mut entries = Vec::with_capacity(came.len());
        for entry in &came {
            if let Some(entry) = self.entry(entry, plus)? {
                entries.push(entry);
            }
        }
        let listing = Listing { entries, verifier: ok.cookieverf, eof: ok.eof, directory: Some(attributes) };
        Ok(Part { listing, last_cookie })
    }

    /// An entry off the wire; `None` for `.` and `..`, which version 4 does not have but some servers send.
    fn entry(&self, came: &WireEntry, plus: bool) -> Result<Option<Entry>> {
        if matches!(&came.name[..], b"." | b"..") {
            return Ok(None);
        }
        let name = Name::new(&came.name).map_err(|_| {
            let what = format_args!("an entry named \"{}\"", came.name.escape_ascii());
            self.nonsense(Operation::Readdir, what)
        })?;
        let Some(cookie) = cookie::from_origin(came.cookie) else {
            let what = format_args!("an entry with cookie {}", came.cookie);
            return Err(self.nonsense(Operation::Readdir, what));
        };
        let node = if plus { self.entry_node(&came.attrs)? } else { None };
        let attributes = node.and_then(|node| node.attributes).map(|attributes| attributes.fileid);
        let fileid = attributes.or(came.attrs.fileid).or(came.attrs.mounted_on_fileid).unwrap_or(0);
        Ok(Some(Entry { name, fileid, cookie, node }))
    }

    /// What an entry is, unless the origin could not tell.
    fn entry_node(&self, came: &Fattr) -> Result<Option<Node>> {
        let Some(handle) = came.filehandle.as_ref().and_then(convert::from_wire) else { return Ok(None) };
        if matches!(came.rdattr_error, Some(protocol::Reply::Fail(..))) || came.ftype.is_none() {
            return Ok(None);
        }
        let attributes = Some(self.attributes_of(Operation::Readdir, &handle, came, None)?);
        Ok(Some(Node { handle, attributes }))
    }
}
