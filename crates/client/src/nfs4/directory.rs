//! READDIR.

use protocol::nfs4::{
    Attr, Bitmap, Entry as WireEntry, Fattr, Op, Operation, ReaddirArgs, Results, Status as Wire, op,
};
use vfs::{Attributes, Caller, Entry, Handle, Listing, Node, ReadDir, Result, Status};

use super::delegating::{Begun, NotCarriedOut, Piggybacking, WithLease, plain};
use super::{Nfs4Client, convert};
use crate::listing::{self, BYTES_MIN, EMPTY_MAX, Part, Place};

/// Attributes of each entry if only names are wanted.
const NAMES: Bitmap = Bitmap::of(&[Attr::RdattrError, Attr::Fileid, Attr::MountedOnFileid]);
/// Attributes of each entry besides those of the file.
const PLUS: Bitmap = Bitmap::of(&[Attr::RdattrError, Attr::Filehandle, Attr::MountedOnFileid]);

impl Nfs4Client {
    pub(super) async fn read_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> Result<Listing> {
        plain(self.read_on(caller, directory, part, Piggybacking::Never).await)
    }

    /// As [`Nfs4Client::read_directory`], with a piggybacked delegation of the directory. It is asked for
    /// only of a server that is known to grant them, because READDIR comes last in its compound.
    pub(super) async fn read_directory_delegated(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> WithLease<Listing> {
        // A recall may come before the answer.
        let _in_flight = self.back.opening();
        if self.piggybacking(directory) == Piggybacking::First
            && let Ok(read) = self.read_on(caller, directory, part, Piggybacking::First).await
        {
            return read;
        }
        WithLease::alone(self.read_directory(caller, directory, part).await)
    }

    async fn read_on(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
        mut piggybacking: Piggybacking,
    ) -> std::result::Result<WithLease<Listing>, NotCarriedOut> {
        let mut place = listing::place(&part);
        let bytes = part.bytes.clamp(BYTES_MIN, self.export().read_max.max(BYTES_MIN));
        let mut lease = None;
        for _ in 0..EMPTY_MAX {
            let wanted = (place, bytes, part.plus);
            let WithLease { result, lease: came } =
                self.read_part(caller, directory, wanted, piggybacking).await?;
            lease = lease.or(came);
            piggybacking = Piggybacking::Never;
            let read = match result {
                Ok(read) => read,
                Err(failed) => return Ok(WithLease { result: Err(failed), lease }),
            };
            if read.says_something() {
                return Ok(WithLease { result: Ok(read.listing), lease });
            }
            let Some(next) = read.next(place) else { break };
            place = next;
        }
        let result = Err(self.nonsense(Operation::Readdir, "no entries, and not the end of the directory"));
        Ok(WithLease { result, lease })
    }

    async fn read_part(
        &self,
        caller: &Caller,
        directory: &Handle,
        ((cookie, cookieverf), bytes, plus): (Place, u32, bool),
        piggybacking: Piggybacking,
    ) -> std::result::Result<WithLease<Part>, NotCarriedOut> {
        let attr_request = if plus { convert::ATTRIBUTES | PLUS } else { NAMES };
        let args = ReaddirArgs { cookie, cookieverf, dircount: bytes, maxcount: bytes, attr_request };
        // Long results come last: see `read_data`.
        let rest = [op::Readdir::with(args)];
        let begun = self.begin_in(caller, directory, Operation::Readdir, piggybacking, &rest).await?;
        let Begun { mut results, above, lease } = match begun {
            Ok(begun) => begun,
            Err(failed) => return Ok(WithLease::alone(Err(failed))),
        };
        let result = above.and_then(|above| self.part(&mut results, above, plus));
        Ok(WithLease { result, lease })
    }

    /// Converts a listing of a directory with these attributes.
    fn part(&self, results: &mut Results, above: Attributes, plus: bool) -> Result<Part> {
        let ok = results.take::<op::Readdir>().map_err(|error| match error.status() {
            // The verifier belongs to another listing.
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
        let listing = Listing {
            entries,
            verifier: ok.cookieverf,
            eof: ok.eof,
            directory: Some(above),
            directory_lease: None,
        };
        Ok(Part { listing, last_cookie })
    }

    /// Converts an entry. `None` for `.` and `..`, which version 4 does not have but some servers send.
    fn entry(&self, came: &WireEntry, plus: bool) -> Result<Option<Entry>> {
        let passed_on = listing::name_of(&came.name, came.cookie);
        let Some((name, cookie)) = passed_on.map_err(|what| self.nonsense(Operation::Readdir, what))? else {
            return Ok(None);
        };
        let node = if plus { self.entry_node(&came.attrs)? } else { None };
        let attributes = node.and_then(|node| node.attributes).map(|attributes| attributes.fileid);
        let fileid = attributes.or(came.attrs.fileid).or(came.attrs.mounted_on_fileid).unwrap_or(0);
        Ok(Some(Entry { name, fileid, cookie, node, file_type: None }))
    }

    /// The node of an entry. `None` if the origin could not return its attributes.
    fn entry_node(&self, came: &Fattr) -> Result<Option<Node>> {
        let Some(handle) = came.filehandle.as_ref().and_then(convert::from_wire) else { return Ok(None) };
        if matches!(came.rdattr_error, Some(protocol::Reply::Fail(..))) || came.ftype.is_none() {
            return Ok(None);
        }
        let attributes = Some(self.attributes_of(Operation::Readdir, &handle, came, None)?);
        Ok(Some(Node { handle, attributes }))
    }
}
