//! LOOKUP, ACCESS, READDIR and READDIRLOOK, and opens. An open is a LOOKUP, and an ACCESS that asks for the
//! lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::nqnfs::{LookupArgs, ReaddirArgs, ReaddirlookArgs, call};
use vfs::{
    AccessMask, Accessed, Attributes, Caller, CreateHow, Delegated, Entry, Error, Handle, Lease, LeaseKind,
    Listing, Looked, Name, Node, OpenId, OpenRequest, Opened, ReadDir, Result, SetAttributes, Share, Status,
    Want, Wcc,
};

use super::calls::Made;
use super::convert::{EXEC, READ, WRITE};
use super::{NqnfsClient, convert, making, plain};
use crate::{cookie, listing};

/// Most bytes of a reply to READDIR.
const READDIR_MAX: u32 = 32 << 10;

impl NqnfsClient {
    pub(super) async fn look_up(&self, caller: &Caller, directory: &Handle, name: &[u8]) -> Result<Looked> {
        let dir = convert::to_wire(directory)?;
        let args = LookupArgs { duration: 0, dir, name: convert::filename(name)? };
        let ok = self.call::<call::Lookup, _, _>(caller, &plain(args)).await?.results;
        let handle = convert::from_wire(&ok.file)?;
        let attributes = Some(self.learn(&handle, &ok.attributes));
        Ok(Looked { node: Node { handle, attributes }, directory: None, directory_lease: None })
    }

    /// Asks for all rights in one call, to which the server says yes or no. After a no, asks for parts of
    /// them.
    pub(super) async fn ask_access(
        &self,
        caller: &Caller,
        handle: &Handle,
        asked: AccessMask,
    ) -> Result<Accessed> {
        let granted = if self.may(caller, handle, asked).await? {
            asked
        } else {
            self.ask_parts(caller, handle, asked).await?
        };
        Ok(Accessed { granted, attributes: None })
    }

    /// Finds out which part of the rights is granted, when not all of them are. Tries first without
    /// execution, which most files lack, then without writing. If one of these is granted, the rest is not.
    async fn ask_parts(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<AccessMask> {
        let parts: Vec<AccessMask> = [READ, WRITE, EXEC]
            .map(|class| asked & class)
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        if let [_] = parts[..] {
            return Ok(AccessMask::empty());
        }
        if parts.len() > 2 {
            for without in [EXEC, WRITE] {
                if self.may(caller, handle, asked - without).await? {
                    return Ok(asked - without);
                }
            }
        }
        let mut granted = AccessMask::empty();
        for part in parts {
            if self.may(caller, handle, part).await? {
                granted |= part;
            }
        }
        Ok(granted)
    }

    async fn may(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<bool> {
        let args = convert::rights(handle, asked)?;
        match self.call::<call::Access, _, _>(caller, &plain(args)).await {
            Ok(_) => Ok(true),
            Err(error) if is_denial(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks for rights on a directory and a lease on it. One call suffices if all rights are granted.
    pub(super) async fn delegate(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        directory: &Handle,
        asked: AccessMask,
    ) -> Result<Delegated> {
        let kind = Some(LeaseKind::Read);
        self.vacated(directory).await;
        match self.access_with_lease(caller, directory, kind, asked).await {
            Ok((lease, rev)) => {
                let attributes = Some(self.attributes_at(caller, directory, rev).await?);
                Ok(Delegated { accessed: Accessed { granted: asked, attributes }, lease })
            }
            Err(error) if is_denial(&error) => {
                let granted = self.ask_parts(caller, directory, asked).await?;
                let (lease, attributes) = self.get_lease(caller, directory, LeaseKind::Read).await?;
                let accessed = Accessed { granted, attributes: Some(attributes) };
                Ok(Delegated { accessed, lease })
            }
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
                let handle = convert::from_wire(&entry.entry_fh)?;
                let node = Node { handle, attributes: Some(self.learn(&handle, &entry.entry_attrib)) };
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
        Ok(Listing { entries, verifier: [0; 8], eof, directory: None, directory_lease: None })
    }

    /// Converts an entry. `None` for `.` and `..`.
    fn entry(&self, name: &[u8], fileid: u32, cookie: u32, node: Option<&Node>) -> Result<Option<Entry>> {
        let passed_on =
            listing::name_of(name, cookie.into()).map_err(|what| self.nonsense.heard("READDIR", what))?;
        let entry = |(name, cookie)| Entry {
            name,
            fileid: fileid.into(),
            cookie,
            node: node.copied(),
            file_type: None,
        };
        Ok(passed_on.map(entry))
    }

    /// Opens a file. The protocol cannot express what the open denies to others. If the open did not create
    /// the file, ACCESS checks the caller's rights, because the layer above takes an open as proof of them.
    /// If the open created the file, a lease that came with it is that proof (docs/reference/nqnfs.md).
    pub(super) async fn open(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        request: &OpenRequest,
    ) -> Result<Opened> {
        let kind = if request.access.contains(Share::WRITE) { LeaseKind::Write } else { LeaseKind::Read };
        let kind = Some(kind).filter(|_| request.want != Want::None && self.is_listening());
        let handle = match (&request.name, &request.create) {
            (None, _) => request.handle,
            (Some(name), None) => self.look_up(caller, &request.handle, name.as_bytes()).await?.node.handle,
            (Some(name), Some(making)) => {
                let made = self.open_or_make(caller, &request.handle, name, *making, kind).await?;
                if made.new == Some(true) {
                    self.used(&made.handle);
                    return Ok(self.opened(made.handle, made.attributes, made.lease, true));
                }
                made.handle
            }
        };
        self.used(&handle);
        let (lease, rev) = self.access_with_lease(caller, &handle, kind, needed(request.access)).await?;
        // Attributes seen before the lease are valid under it if nothing has happened in between.
        let attributes = self.attributes_at(caller, &handle, rev).await?;
        Ok(self.opened(handle, attributes, lease, false))
    }

    fn opened(&self, handle: Handle, attributes: Attributes, lease: Option<Lease>, created: bool) -> Opened {
        let id = OpenId(self.next_open.fetch_add(1, Ordering::Relaxed));
        Opened {
            id,
            handle,
            attributes,
            lease,
            directory: Wcc::default(),
            created,
            granted: None,
            directory_lease: None,
            read: None,
        }
    }

    /// Sends CREATE, which accepts an existing file. With a lease request, the server says whether the file
    /// existed before. Without one, or if the file must not exist, a LOOKUP finds out.
    async fn open_or_make(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        (how, set): (CreateHow, SetAttributes),
        kind: Option<LeaseKind>,
    ) -> Result<Made> {
        if how != CreateHow::Unchecked {
            self.must_not_be_there(caller, directory, name).await?;
        }
        let Some(kind) = kind else {
            return self.make_or_take(caller, directory, name, how, &set).await;
        };
        let made = {
            let args = making::arguments(directory, name, &set)?;
            self.make_with_lease::<call::Create>(caller, args, kind).await?
        };
        match (how, made.new) {
            // Another client was faster.
            (CreateHow::Guarded | CreateHow::Exclusive(_), Some(false)) => Err(Status::Exist.into()),
            (CreateHow::Guarded | CreateHow::Exclusive(_), None) => Ok(Made { new: Some(true), ..made }),
            _ => Ok(made),
        }
    }

    /// The same without a lease request.
    async fn make_or_take(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Made> {
        let new = match how {
            CreateHow::Unchecked => match self.look_up(caller, directory, name.as_bytes()).await {
                Ok(_) => false,
                Err(error) if error.status == Status::NoEnt => true,
                Err(error) => return Err(error),
            },
            _ => true,
        };
        let node = self.make_file(caller, directory, name, CreateHow::Unchecked, set).await?.node;
        let attributes = match node.attributes {
            Some(attributes) => attributes,
            None => self.attributes_at(caller, &node.handle, None).await?,
        };
        Ok(Made { handle: node.handle, attributes, new: Some(new), lease: None })
    }
}

fn is_denial(error: &Error) -> bool {
    matches!(error.status, Status::Access | Status::Rofs | Status::Perm)
}

/// The rights that a share needs.
fn needed(access: Share) -> AccessMask {
    let mut rights = AccessMask::empty();
    rights.set(AccessMask::READ, access.contains(Share::READ));
    rights.set(AccessMask::MODIFY | AccessMask::EXTEND, access.contains(Share::WRITE));
    rights
}
