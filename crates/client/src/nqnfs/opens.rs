//! LOOKUP, ACCESS, READDIR and READDIRLOOK; and opens, which are a LOOKUP and an ACCESS that asks for the lease along.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::nqnfs::{self, AccessArgs, LookupArgs, ReaddirArgs, ReaddirlookArgs, call};
use vfs::{
    AccessMask, Accessed, Caller, CreateHow, Entry, Handle, LeaseKind, Listing, Looked, Name, Node, OpenId,
    OpenRequest, Opened, ReadDir, Result, SetAttributes, Share, Status, Want, Wcc,
};

use super::{Inner, convert, plain};
use crate::cookie;

/// What the answer to a READDIR can be made of at most, in bytes.
const READDIR_MAX: u32 = 32 << 10;

impl Inner {
    pub(super) async fn look_up(&self, caller: &Caller, directory: &Handle, name: &[u8]) -> Result<Looked> {
        let dir = convert::to_wire(directory)?;
        let args = LookupArgs { duration: 0, dir, name: convert::filename(name)? };
        let ok = self.call::<call::Lookup, _, _>(caller, &plain(args)).await?.results;
        let attributes = Some(convert::attributes(&ok.attributes));
        Ok(Looked { node: Node { handle: convert::from_wire(&ok.file)?, attributes }, directory: None })
    }

    /// The server says yes or no to all that is asked at once; after a no, each is asked on its own.
    pub(super) async fn ask_access(
        &self,
        caller: &Caller,
        handle: &Handle,
        asked: AccessMask,
    ) -> Result<Accessed> {
        const WRITE: AccessMask = AccessMask::MODIFY.union(AccessMask::EXTEND).union(AccessMask::DELETE);
        const EXEC: AccessMask = AccessMask::LOOKUP.union(AccessMask::EXECUTE);
        let classes = [AccessMask::READ, WRITE, EXEC];
        let mut granted = AccessMask::empty();
        if self.may(caller, handle, asked).await? {
            granted = asked;
        } else {
            let parts = classes.map(|class| asked & class);
            let several = parts.iter().filter(|part| !part.is_empty()).count() > 1;
            for part in parts.into_iter().filter(|part| several && !part.is_empty()) {
                if self.may(caller, handle, part).await? {
                    granted |= part;
                }
            }
        }
        Ok(Accessed { granted, attributes: None })
    }

    async fn may(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<bool> {
        let write = AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
        let args = AccessArgs {
            file: convert::to_wire(handle)?,
            read: asked.intersects(AccessMask::READ),
            write: asked.intersects(write),
            exec: asked.intersects(AccessMask::LOOKUP | AccessMask::EXECUTE),
        };
        match self.call::<call::Access, _, _>(caller, &plain(args)).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.status, Status::Access | Status::Rofs | Status::Perm) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn read_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> Result<Listing> {
        let file = convert::to_wire(directory)?;
        let cookie = u32::try_from(cookie::to_origin(part.cookie)).map_err(|_| Status::BadCookie)?;
        let cnt = part.bytes.clamp(1024, READDIR_MAX);
        let mut entries = Vec::new();
        let eof = if part.plus {
            let args = ReaddirlookArgs { file, cookie, cnt, duration: 0 };
            let ok = self.call::<call::Readdirlook, _, _>(caller, &plain(args)).await?.results;
            for entry in ok.entries.into_vec() {
                let attributes = Some(convert::attributes(&entry.entry_attrib));
                let node = Node { handle: convert::from_wire(&entry.entry_fh)?, attributes };
                entries.extend(self.entry(&entry.name, entry.fid, entry.cookie, Some(&node))?);
            }
            ok.eof
        } else {
            let args = ReaddirArgs { dir: file, cookie, count: cnt.min(8192) };
            let ok = self.call::<call::Readdir, _, _>(caller, &plain(args)).await?.results;
            for entry in ok.entries.into_vec() {
                entries.extend(self.entry(&entry.name, entry.fileid, entry.cookie, None)?);
            }
            ok.eof
        };
        Ok(Listing { entries, verifier: [0; 8], eof, directory: None })
    }

    /// An entry; `None` for `.` and `..`.
    fn entry(&self, name: &[u8], fileid: u32, cookie: u32, node: Option<&Node>) -> Result<Option<Entry>> {
        if matches!(name, b"." | b"..") {
            return Ok(None);
        }
        let nonsense =
            || self.nonsense.heard("READDIR", format_args!("an entry named \"{}\"", name.escape_ascii()));
        let name = Name::new(name).map_err(|_| nonsense())?;
        let cookie = cookie::from_origin(cookie.into()).ok_or_else(nonsense)?;
        Ok(Some(Entry { name, fileid: fileid.into(), cookie, node: node.copied() }))
    }

    /// An open. What it denies to others the server cannot be told. Who did not make the file is asked for, in the name of
    /// the caller: the layer above takes an open as the proof that he may.
    pub(super) async fn open(self: &Arc<Inner>, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let (handle, created, seen) = match (&request.name, &request.create) {
            (None, _) => (request.handle, false, None),
            (Some(name), None) => {
                let node = self.look_up(caller, &request.handle, name.as_bytes()).await?.node;
                (node.handle, false, node.attributes)
            }
            (Some(name), Some((how, set))) => {
                let (handle, created) = self.open_or_make(caller, &request.handle, name, *how, set).await?;
                (handle, created, None)
            }
        };
        self.used(&handle);
        let kind = if request.access.contains(Share::WRITE) { LeaseKind::Write } else { LeaseKind::Read };
        let leased = request.want != Want::None && self.is_listening();
        let (lease, attributes) = match (created, leased) {
            (true, true) => self.get_lease(caller, &handle, kind).await?,
            (true, false) => (None, self.attributes_of(caller, &handle).await?),
            (false, _) => {
                let kind = Some(kind).filter(|_| leased);
                let (lease, rev) = self.access_with_lease(caller, &handle, kind, request.access).await?;
                // What was seen before the lease is what it vouches for, if nothing has happened in between.
                match seen.filter(|seen| rev == Some(seen.change) || !leased) {
                    Some(seen) => (lease, seen),
                    None => (lease, self.attributes_of(caller, &handle).await?),
                }
            }
        };
        let id = OpenId(self.next_open.fetch_add(1, Ordering::Relaxed));
        Ok(Opened { id, handle, attributes, lease, directory: Wcc::default(), created, granted: None })
    }

    async fn attributes_of(&self, caller: &Caller, handle: &Handle) -> Result<vfs::Attributes> {
        let args = plain(convert::to_wire(handle)?);
        let fattr = self.call::<call::Getattr, _, _>(caller, &args).await?.results;
        Ok(convert::attributes(&fattr))
    }

    async fn open_or_make(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<(Handle, bool)> {
        match self.look_up(caller, directory, name.as_bytes()).await {
            Ok(_) if how != CreateHow::Unchecked => Err(Status::Exist.into()),
            Ok(looked) => {
                if let Some(size) = set.size {
                    let only = SetAttributes { size: Some(size), ..SetAttributes::default() };
                    let file = convert::to_wire(&looked.node.handle)?;
                    let args = nqnfs::SattrArgs { file, attributes: convert::sattr(&only) };
                    self.call::<call::Setattr, _, _>(caller, &plain(args)).await?;
                }
                Ok((looked.node.handle, false))
            }
            Err(error) if error.status == Status::NoEnt => {
                let created = self.make_file(caller, directory, name, CreateHow::Unchecked, set).await?;
                Ok((created.node.handle, true))
            }
            Err(error) => Err(error),
        }
    }
}
