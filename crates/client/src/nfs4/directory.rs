//! READDIR.

use protocol::nfs4::{
    Attr, Bitmap, Entry as WireEntry, Fattr, Op, Operation, ReaddirArgs, Results, Status as Wire, op,
};
use vfs::{
    AndDelegated, Attributes, Caller, Entry, Handle, Listing, Name, Node, ReadDir, Result, Status, Verifier,
};

use super::attributes::{getattr_all, put};
use super::delegating::{NotCarriedOut, Riding};
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
        let read = self.read_on(caller, directory, part, Riding::Never).await;
        read.unwrap_or_else(|NotCarriedOut| AndDelegated::alone(Err(Status::ServerFault.into()))).result
    }

    /// The same, and a delegation of the directory along with it. Only of a server that is known to have them: a listing
    /// comes last in its compound.
    pub(super) async fn read_directory_delegated(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> AndDelegated<Listing> {
        // A recall may come before the answer.
        let _in_flight = self.back.opening();
        if self.riding(directory) == Riding::First
            && let Ok(read) = self.read_on(caller, directory, part, Riding::First).await
        {
            return read;
        }
        AndDelegated::alone(self.read_directory(caller, directory, part).await)
    }

    async fn read_on(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
        mut riding: Riding,
    ) -> std::result::Result<AndDelegated<Listing>, NotCarriedOut> {
        let mut cookie = cookie::to_origin(part.cookie);
        let mut verifier = if cookie == 0 { [0; 8] } else { part.verifier };
        let bytes = part.bytes.clamp(BYTES_MIN, self.export().read_max.max(BYTES_MIN));
        let mut lease = None;
        for _ in 0..EMPTY_MAX {
            let wanted = (cookie, verifier, bytes, part.plus);
            let AndDelegated { result, lease: came } =
                self.read_part(caller, directory, wanted, riding).await?;
            lease = lease.or(came);
            riding = Riding::Never;
            let read = match result {
                Ok(read) => read,
                Err(failed) => return Ok(AndDelegated { result: Err(failed), lease }),
            };
            if !read.listing.entries.is_empty() || read.listing.eof {
                return Ok(AndDelegated { result: Ok(read.listing), lease });
            }
            match read.last_cookie {
                Some(last) if last != cookie => (cookie, verifier) = (last, read.listing.verifier),
                _ => break,
            }
        }
        let result = Err(self.nonsense(Operation::Readdir, "no entries, and not the end of the directory"));
        Ok(AndDelegated { result, lease })
    }

    async fn read_part(
        &self,
        caller: &Caller,
        directory: &Handle,
        (cookie, cookieverf, bytes, plus): (u64, Verifier, u32, bool),
        riding: Riding,
    ) -> std::result::Result<AndDelegated<Part>, NotCarriedOut> {
        let attr_request = if plus { convert::ATTRIBUTES | PLUS } else { NAMES };
        let args = ReaddirArgs { cookie, cookieverf, dircount: bytes, maxcount: bytes, attr_request };
        let build = |_: &State| {
            let mut operations = vec![put(directory)?];
            operations.extend(riding.first());
            operations.extend([getattr_all(), op::Readdir::with(args)]);
            Ok((operations, Used::Nothing))
        };
        let main = Operation::Readdir;
        let plan = if riding == Riding::Never { Plan::reading(main) } else { Plan::stateful(main) };
        let begun = async {
            let mut results = self.run(caller, plan, build).await?.results;
            self.take::<op::Putfh>(&mut results)?;
            Ok::<_, vfs::Error>(results)
        };
        let mut results = match begun.await {
            Ok(results) => results,
            Err(failed) => return Ok(AndDelegated::alone(Err(failed))),
        };
        let promised = self.take_first(caller, directory, riding, &mut results)?;
        // Long results come last: see `read_data`.
        let above = self.take_attributes(&mut results, directory, None);
        let lease = self.vouched(promised, above.as_ref().ok().copied());
        let result = above.and_then(|above| self.part(&mut results, above, plus));
        Ok(AndDelegated { result, lease })
    }

    /// An answer of a directory with these attributes.
    fn part(&self, results: &mut Results, above: Attributes, plus: bool) -> Result<Part> {
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
        let listing = Listing { entries, verifier: ok.cookieverf, eof: ok.eof, directory: Some(above) };
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
