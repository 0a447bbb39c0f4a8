//! Listings of directories (RFC 1094, section 2.2.17).

use protocol::nfs2::{Entry as WireEntry, Filename, ReaddirOk};
use vfs::{Entry, ReadDir, Status};
use xdr::{LinkedList, padding};

use super::convert::fileid;
use super::{Cookies, attributes};
use crate::shared::Object;

/// End of list and eof.
const FRAME_BYTES: u32 = 4 + 4 + 4;

/// Lists a part of a directory: the entries after `from`, in at most `count` bytes.
pub(crate) async fn list(
    cookies: &Cookies,
    directory: Object,
    from: u32,
    count: u32,
) -> vfs::Result<ReaddirOk> {
    let Object { export, handle, caller } = directory;
    let capacity = count.min(8192).checked_sub(FRAME_BYTES).ok_or(Status::TooSmall)?;
    let cookie = match u64::from(from) {
        0..Entry::FIRST_COOKIE => 0,
        _ => cookies.lengthen(&export, &caller, &handle, from).await?,
    };
    let part = ReadDir {
        cookie,
        verifier: [0; 8],
        bytes: capacity,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = export.fs().readdir(&caller, &handle, part).await?;
    let mut all = Vec::new();
    if from < 2 {
        let own = fileid(attributes(&export, &caller, &handle, listing.directory).await?.fileid);
        all.extend([(&b"."[..], own, 1), (b"..", own, 2)].into_iter().skip(from as usize));
    }
    all.extend(
        listing
            .entries
            .iter()
            .map(|entry| (entry.name.as_bytes(), fileid(entry.fileid), Cookies::shorten(entry.cookie))),
    );
    let mut entries = Vec::new();
    let mut used = 0;
    let count = all.len();
    for (name, fileid, cookie) in all {
        used += 4 + 4 + 4 + (name.len() + padding(name.len())) as u32 + 4;
        if used > capacity {
            break;
        }
        entries.push(WireEntry {
            fileid,
            name: Filename::new(name.to_vec()).ok_or(Status::ServerFault)?,
            cookie,
        });
    }
    let cut = entries.len() < count;
    if entries.is_empty() && cut {
        return Err(Status::TooSmall.into());
    }
    // The client will continue after the last entry that it got.
    let last = entries.last().map(|entry| entry.cookie);
    if let Some(entry) = listing.entries.iter().find(|entry| Some(Cookies::shorten(entry.cookie)) == last) {
        cookies.remember(&handle, entry.cookie);
    }
    let entries = LinkedList::new(entries).ok_or(Status::ServerFault)?;
    Ok(ReaddirOk { entries, eof: listing.eof && !cut })
}
