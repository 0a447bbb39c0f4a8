//! Of an export that is elsewhere: where (RFC 8881, section 11.4; RFC 7530, section 8.3).
//!
//! GETATTR, VERIFY and NVERIFY give `fs_locations`, `fsid` and `mounted_on_fileid` to who asks for the first, leave out what
//! there is not, and say MOVED to everybody else. In a listing, who asks for `rdattr_error` finds MOVED there.

use protocol::nfs4::{
    Attr, Bitmap, Component, Fattr, FsLocation, FsLocations, Limited, Outcome, Pathname, Status,
};
use xdr::List;

use crate::exports::{Export, Location};
use crate::nfs4::compound::Compound;
use crate::nfs4::convert;

/// What there is of it.
const THERE: Bitmap = Bitmap::of(&[Attr::Fsid, Attr::RdattrError, Attr::FsLocations, Attr::MountedOnFileid]);

/// What GETATTR gives.
///
/// # Errors
/// `Moved`.
pub(super) fn fattr(compound: &Compound<'_>, export: &Export, asked: Bitmap) -> Result<Fattr, Status> {
    if !asked.contains(Attr::FsLocations) {
        return Err(Status::Moved);
    }
    Ok(all(compound, export, Outcome::Ok(()), asked))
}

/// What READDIR gives of its root.
///
/// # Errors
/// `Moved`: the whole listing fails.
pub(crate) fn listed(compound: &Compound<'_>, export: &Export, asked: Bitmap) -> Result<Fattr, Status> {
    if asked.contains(Attr::FsLocations) || !asked.contains(Attr::RdattrError) {
        return fattr(compound, export, asked);
    }
    Ok(all(compound, export, Outcome::Fail(Status::Moved, ()), asked))
}

fn all(compound: &Compound<'_>, export: &Export, rdattr_error: Outcome, asked: Bitmap) -> Fattr {
    let pseudo = &compound.front.pseudo;
    let mut fattr = Fattr {
        // Another than that of the directory that it is in, by which clients know that they cross over.
        fsid: Some(convert::fsid(export.id, vfs::Fsid::default())),
        rdattr_error: Some(rdattr_error),
        fs_locations: Some(Box::new(fs_locations(export))),
        mounted_on_fileid: pseudo.of_export(export).map(|node| pseudo.id(node)),
        ..Fattr::default()
    };
    fattr.retain(asked & THERE);
    fattr
}

/// Where an export is besides here, or instead.
pub(super) fn fs_locations(export: &Export) -> FsLocations {
    let elsewhere = if export.is_absent() { &export.options.refer } else { &export.options.replicas };
    FsLocations {
        fs_root: pathname(export.path.split('/').filter(|name| !name.is_empty())),
        locations: List::new(elsewhere.iter().map(location).collect()).unwrap_or_default(),
    }
}

fn location(location: &Location) -> FsLocation {
    let hosts = location.hosts.iter().filter_map(|host| Limited::new(host.clone().into_bytes()));
    FsLocation {
        server: List::new(hosts.collect()).unwrap_or_default(),
        rootpath: pathname(location.path.iter().map(String::as_str)),
    }
}

fn pathname<'n>(names: impl Iterator<Item = &'n str>) -> Pathname {
    let names = names.filter_map(|name| Component::new(name.as_bytes().to_vec()));
    Pathname::new(names.collect()).unwrap_or_default()
}
