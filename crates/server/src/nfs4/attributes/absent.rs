//! Attributes of an export that is on another server: its locations (RFC 8881, section 11.4; RFC 7530,
//! section 8.3).
//!
//! If a client requests `fs_locations`, then GETATTR, VERIFY and NVERIFY give `fs_locations`, `fsid` and
//! `mounted_on_fileid`, and omit the other attributes. Otherwise they fail with MOVED. In a listing, a
//! client that requests `rdattr_error` finds MOVED there.

use protocol::nfs4::{
    Attr, Bitmap, Component, Fattr, FsLocation, FsLocations, Limited, Outcome, Pathname, Status,
};
use xdr::List;

use crate::exports::{Export, Location};
use crate::nfs4::compound::Compound;
use crate::nfs4::convert;

/// The attributes that such an export has.
const THERE: Bitmap = Bitmap::of(&[Attr::Fsid, Attr::RdattrError, Attr::FsLocations, Attr::MountedOnFileid]);

/// The attributes for GETATTR.
///
/// # Errors
/// `Moved`.
pub(super) fn fattr(compound: &Compound<'_>, export: &Export, asked: Bitmap) -> Result<Fattr, Status> {
    if !asked.contains(Attr::FsLocations) {
        return Err(Status::Moved);
    }
    Ok(all(compound, export, Outcome::Ok(()), asked))
}

/// The attributes of its root for READDIR.
///
/// # Errors
/// `Moved`: the whole listing fails.
pub(crate) fn listed(compound: &Compound<'_>, export: &Export, asked: Bitmap) -> Result<Fattr, Status> {
    if asked.contains(Attr::FsLocations) || !asked.contains(Attr::RdattrError) {
        return fattr(compound, export, asked);
    }
    Ok(all(compound, export, Outcome::Fail(Status::Moved, ()), asked))
}

/// The attributes of the root of an export that is awaited, for READDIR. One origin that is away must not
/// hide the others.
///
/// # Errors
/// `Delay`, if the client asks for more and has no place for an error in the entry.
pub(crate) fn awaited(compound: &Compound<'_>, export: &Export, asked: Bitmap) -> Result<Fattr, Status> {
    let away = Outcome::Fail(Status::Delay, ());
    if asked.contains(Attr::RdattrError) || (asked & THERE) == asked {
        Ok(all(compound, export, away, asked))
    } else {
        Err(Status::Delay)
    }
}

fn all(compound: &Compound<'_>, export: &Export, rdattr_error: Outcome, asked: Bitmap) -> Fattr {
    let pseudo = compound.front.pseudo();
    let mut fattr = Fattr {
        // Different from the `fsid` of the directory above. Clients recognize the crossing by it.
        fsid: Some(convert::fsid(export.id, vfs::Fsid::default())),
        rdattr_error: Some(rdattr_error),
        fs_locations: Some(Box::new(fs_locations(export))),
        mounted_on_fileid: pseudo.of_export(export).map(|node| pseudo.id(node)),
        ..Fattr::default()
    };
    fattr.retain(asked & THERE);
    fattr
}

/// The other locations of an export: its replicas, or the servers that have it instead of this one.
pub(super) fn fs_locations(export: &Export) -> FsLocations {
    let options = export.options();
    let elsewhere = if options.refer.is_empty() { &options.replicas } else { &options.refer };
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
