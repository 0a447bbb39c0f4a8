//! Handles as clients hold them (law 6 of the design).
//!
//! A handle names the export, proves that this server gave it out, and contains the back end's own handle
//! if that fits:
//!
//! ```text
//! v4   kind 1 | export 4 | check 8 | back end's handle, up to 115
//! v3   kind 1 | export 4 | check 8 | back end's handle, up to 51
//! v2   kind 1 | export 4 | check 8 | length 1 | back end's handle, up to 18 | zeros
//! long kind 1 | export 4 | keyed hash 16 of export and back end's handle        (v2: and zeros)
//! pseudo kind 1 | zeros 4 | check 8 | directory above exports 8
//! ```
//!
//! The check is a keyed hash, so that a client cannot forge a handle to an object that it did not look up.
//! A long handle names an entry of a table. The entry is durable before the handle is given out; see
//! [`table`]. With the same key, another proxy of the same origin accepts every handle that contains the
//! back end's handle.
//!
//! Promise: stable-handles

mod key;
mod table;

use std::hash::Hasher;
use std::io;
use std::path::Path;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use vfs::{Handle, Status};

pub use key::HandleKey;

use crate::exports::ExportId;
use table::Table;

/// `NFS3_FHSIZE`.
const V3_MAX: usize = protocol::nfs3::FHSIZE;
/// `NFS4_FHSIZE`.
const V4_MAX: usize = protocol::nfs4::FHSIZE;
const PREFIX: usize = 13;
const INSIDE: u8 = 1;
const INSIDE_V2: u8 = 2;
const LONG: u8 = 3;
const PSEUDO: u8 = 4;
/// Replaces an export's id in the handle of a directory above exports.
const NO_EXPORT: ExportId = ExportId(0);

/// Makes and reads handles.
#[derive(Debug)]
pub struct Handles {
    key: HandleKey,
    table: Table,
}

impl Handles {
    /// Opens with a key. `state` is an existing directory that holds the table of long handles.
    pub fn open(key: HandleKey, state: &Path) -> io::Result<Handles> {
        Ok(Handles { key, table: Table::open(state)? })
    }

    /// A handle for v3.
    ///
    /// # Errors
    /// `Io` if it is a long handle and the table cannot be written.
    pub fn v3(&self, export: ExportId, handle: &Handle) -> Result<protocol::nfs3::Handle, Status> {
        let mut bytes = [0; V3_MAX];
        let length = self.inside_or_long(&mut bytes, export, handle)?;
        protocol::nfs3::Handle::new(&bytes[..length]).ok_or(Status::ServerFault)
    }

    /// A handle for v4. If it fits into v3, it is the same for both versions.
    ///
    /// # Errors
    /// As of [`Handles::v3`].
    pub fn v4(&self, export: ExportId, handle: &Handle) -> Result<protocol::nfs4::Handle, Status> {
        let mut bytes = [0; V4_MAX];
        let length = self.inside_or_long(&mut bytes, export, handle)?;
        protocol::nfs4::Handle::new(&bytes[..length]).ok_or(Status::ServerFault)
    }

    /// A v4 handle of a directory above exports.
    pub(crate) fn pseudo(&self, id: u64) -> Result<protocol::nfs4::Handle, Status> {
        let mut bytes = [0; PREFIX + 8];
        self.prefix(&mut bytes, PSEUDO, NO_EXPORT, &id.to_be_bytes());
        bytes[PREFIX..].copy_from_slice(&id.to_be_bytes());
        protocol::nfs4::Handle::new(&bytes).ok_or(Status::ServerFault)
    }

    /// The directory above exports that a handle names; `None` if it is a handle of another kind.
    ///
    /// # Errors
    /// `BadHandle` if this server did not give it out.
    pub(crate) fn read_pseudo(&self, wire: &[u8]) -> Option<Result<u64, Status>> {
        let (&PSEUDO, rest) = wire.split_first()? else { return None };
        let parsed = || {
            let (export, rest) = rest.split_first_chunk::<4>()?;
            let (check, inner) = rest.split_first_chunk::<8>()?;
            let id = u64::from_be_bytes(*inner.first_chunk::<8>().filter(|_| inner.len() == 8)?);
            (*export == NO_EXPORT.0.to_be_bytes() && self.check(NO_EXPORT, inner) == *check).then_some(id)
        };
        Some(parsed().ok_or(Status::BadHandle))
    }

    fn inside_or_long(&self, bytes: &mut [u8], export: ExportId, handle: &Handle) -> Result<usize, Status> {
        let inner = handle.as_bytes();
        let Some(place) = bytes.get_mut(PREFIX..PREFIX + inner.len()) else {
            return self.long(bytes, export, handle);
        };
        place.copy_from_slice(inner);
        self.prefix(bytes, INSIDE, export, inner);
        Ok(PREFIX + inner.len())
    }

    /// A handle for v2.
    ///
    /// # Errors
    /// As of [`Handles::v3`].
    pub fn v2(&self, export: ExportId, handle: &Handle) -> Result<protocol::nfs2::Handle, Status> {
        let inner = handle.as_bytes();
        let mut bytes = [0; protocol::nfs2::FHSIZE];
        if PREFIX + 1 + inner.len() <= bytes.len() {
            self.prefix(&mut bytes, INSIDE_V2, export, inner);
            bytes[PREFIX] = inner.len() as u8;
            bytes[PREFIX + 1..PREFIX + 1 + inner.len()].copy_from_slice(inner);
        } else {
            self.long(&mut bytes, export, handle)?;
        }
        Ok(bytes)
    }

    /// The export and object that a handle of any version names.
    ///
    /// # Errors
    /// `BadHandle` if this server did not give it out; `Stale` if it is a long handle that the table does
    /// not have.
    pub fn read(&self, wire: &[u8]) -> Result<(ExportId, Handle), Status> {
        let (&kind, rest) = wire.split_first().ok_or(Status::BadHandle)?;
        let (export, rest) = rest.split_first_chunk::<4>().ok_or(Status::BadHandle)?;
        let export = ExportId(u32::from_be_bytes(*export));
        if kind == LONG {
            let (hash, zeros) = rest.split_first_chunk::<16>().ok_or(Status::BadHandle)?;
            if zeros.iter().any(|&byte| byte != 0) {
                return Err(Status::BadHandle);
            }
            return self
                .table
                .get(export, u128::from_be_bytes(*hash))
                .map(|handle| (export, handle))
                .ok_or(Status::Stale);
        }
        let (check, rest) = rest.split_first_chunk::<8>().ok_or(Status::BadHandle)?;
        let inner = match kind {
            INSIDE => rest,
            INSIDE_V2 => {
                let (&length, rest) = rest.split_first().ok_or(Status::BadHandle)?;
                rest.get(..length as usize).ok_or(Status::BadHandle)?
            }
            _ => return Err(Status::BadHandle),
        };
        if self.check(export, inner) != *check {
            return Err(Status::BadHandle);
        }
        Ok((export, Handle::new(inner).ok_or(Status::BadHandle)?))
    }

    fn prefix(&self, bytes: &mut [u8], kind: u8, export: ExportId, inner: &[u8]) {
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&export.0.to_be_bytes());
        bytes[5..PREFIX].copy_from_slice(&self.check(export, inner));
    }

    fn long(&self, bytes: &mut [u8], export: ExportId, handle: &Handle) -> Result<usize, Status> {
        let mut hasher = SipHasher128::new_with_key(self.key.bytes());
        hasher.write(&export.0.to_be_bytes());
        hasher.write(handle.as_bytes());
        let hash = hasher.finish128().as_u128();
        self.table.put(export, hash, handle).map_err(|error| {
            tracing::error!(%error, "the handle table cannot be written: no handle is given out");
            Status::Io
        })?;
        bytes[0] = LONG;
        bytes[1..5].copy_from_slice(&export.0.to_be_bytes());
        bytes[5..21].copy_from_slice(&hash.to_be_bytes());
        Ok(21)
    }

    fn check(&self, export: ExportId, inner: &[u8]) -> [u8; 8] {
        let mut hasher = SipHasher24::new_with_key(self.key.bytes());
        hasher.write(&export.0.to_be_bytes());
        hasher.write(inner);
        hasher.finish().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: ExportId = ExportId(7);

    fn handles(state: &Path) -> Handles {
        Handles::open(HandleKey::new([9; 16]), state).unwrap()
    }

    #[test]
    fn handles_come_back_at_every_length_and_in_the_next_life() {
        let state = tempfile::tempdir().unwrap();
        let mut given = Vec::new();
        let ours = handles(state.path());
        for length in 0..=Handle::MAX {
            let handle = Handle::new(&vec![length as u8; length]).unwrap();
            let v3 = ours.v3(EXPORT, &handle).unwrap();
            let v2 = ours.v2(EXPORT, &handle).unwrap();
            assert_eq!(ours.read(&v3), Ok((EXPORT, handle)));
            assert_eq!(ours.read(&v2), Ok((EXPORT, handle)));
            given.push((handle, v3, v2));
        }
        drop(ours);
        let again = handles(state.path());
        for (handle, v3, v2) in given {
            assert_eq!(again.read(&v3), Ok((EXPORT, handle)));
            assert_eq!(again.read(&v2), Ok((EXPORT, handle)));
        }
    }

    #[test]
    fn another_proxy_with_the_same_key_reads_what_fits() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (short, long) = (Handle::new(&[1; 40]).unwrap(), Handle::new(&[1; 60]).unwrap());
        let wire = handles(one.path()).v3(EXPORT, &short).unwrap();
        assert_eq!(handles(two.path()).read(&wire), Ok((EXPORT, short)));
        let wire = handles(one.path()).v3(EXPORT, &long).unwrap();
        assert_eq!(handles(two.path()).read(&wire), Err(Status::Stale));
    }

    #[test]
    fn forged_handles_are_refused() {
        let state = tempfile::tempdir().unwrap();
        let ours = handles(state.path());
        let wire = ours.v3(EXPORT, &Handle::new(b"inode 2").unwrap()).unwrap();
        for position in 0..wire.len() {
            let mut forged = wire.to_vec();
            forged[position] ^= 1;
            assert!(ours.read(&forged).is_err(), "byte {position}");
        }
        let foreign = Handles::open(HandleKey::new([8; 16]), state.path()).unwrap();
        assert_eq!(foreign.read(&wire), Err(Status::BadHandle));
        for length in 0..wire.len() {
            assert!(ours.read(&wire[..length]).is_err());
        }
    }
}
