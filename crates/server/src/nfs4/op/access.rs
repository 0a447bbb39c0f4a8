//! ACCESS (RFC 8881, section 18.1; RFC 8276, section 8.5).

use protocol::nfs4::{
    ACCESS4_DELETE, ACCESS4_EXECUTE, ACCESS4_EXTEND, ACCESS4_LOOKUP, ACCESS4_MODIFY, ACCESS4_READ,
    ACCESS4_XALIST, ACCESS4_XAREAD, ACCESS4_XAWRITE, AccessArgs, AccessOk, Status,
};
use vfs::{AccessMask, Features, Freshness};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::convert;
use crate::shared::Object;
use crate::state::stateids::FileKey;

/// The bits that `vfs` has too, at the same positions.
const PLAIN: u32 =
    ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE | ACCESS4_EXECUTE;
/// The bits of extended attributes.
const XATTR: u32 = ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST;
/// The rights that every client has on directories above exports.
const PSEUDO: u32 = ACCESS4_READ | ACCESS4_LOOKUP;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: AccessArgs,
) -> Result<AccessOk, Status> {
    let known = if compound.minor >= 2 { PLAIN | XATTR } else { PLAIN };
    if args.access & !known != 0 {
        return Err(Status::Inval);
    }
    if let File::Pseudo(_) = compound.file()? {
        return Ok(AccessOk { supported: args.access & PLAIN, access: args.access & PSEUDO });
    }
    let freshness = freshness(compound, args.access);
    if compound.is_question() && args.access == ACCESS4_READ {
        compound.note_confirming();
    }
    let Object { export, handle, caller } = compound.object()?;
    let caller = caller.with_freshness(freshness);
    let has_xattrs = args.access & XATTR != 0 && {
        let known = export.known(&caller).await.map_err(convert::error)?;
        known.limits.features.contains(Features::XATTR)
    };
    let supported = if has_xattrs { args.access } else { args.access & PLAIN };
    let file = FileKey { export: export.id, handle };
    let (told, is_dir) = if let Some(told) = compound.granted_at_open(&file) {
        // The reply to the OPEN is younger than this compound.
        (told, Some(false))
    } else {
        let asked = export.fs().access(&caller, &handle, asked(supported)).await;
        let accessed = asked.map_err(convert::error)?;
        (accessed.granted, accessed.attributes.map(|attributes| attributes.is_dir()))
    };
    let supported = supported & !meaningless(is_dir);
    let mut granted = granted(supported, told);
    if export.options().read_only {
        granted &= !(ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE | ACCESS4_XAWRITE);
    }
    Ok(AccessOk { supported, access: granted })
}

/// May the answer come from attribute timeouts? Kernels ask once for all rights of a file together. A cache
/// that asks for reading alone, as Leasehold does, confirms its cached data, so the answer must be fresh.
fn freshness(compound: &Compound<'_>, access: u32) -> Freshness {
    if !compound.is_question() {
        Freshness::Timeout
    } else if access == ACCESS4_READ || compound.may_stand_for_open() {
        Freshness::Open
    } else {
        Freshness::Directory
    }
}

/// The rights to ask for. A caller that may read or write a file may read or write its extended attributes.
fn asked(bits: u32) -> AccessMask {
    let mut asked = AccessMask::from_bits_truncate(bits & PLAIN);
    asked.set(AccessMask::READ, bits & (ACCESS4_READ | ACCESS4_XAREAD | ACCESS4_XALIST) != 0);
    asked.set(AccessMask::MODIFY, bits & (ACCESS4_MODIFY | ACCESS4_XAWRITE) != 0);
    asked
}

fn granted(asked: u32, granted: AccessMask) -> u32 {
    let mut bits = granted.bits() & asked & PLAIN;
    if granted.contains(AccessMask::READ) {
        bits |= asked & (ACCESS4_XAREAD | ACCESS4_XALIST);
    }
    if granted.contains(AccessMask::MODIFY) {
        bits |= asked & ACCESS4_XAWRITE;
    }
    bits
}

/// The bits without a meaning: lookup and delete on a file, execute on a directory.
fn meaningless(is_dir: Option<bool>) -> u32 {
    match is_dir {
        Some(true) => ACCESS4_EXECUTE,
        Some(false) => ACCESS4_LOOKUP | ACCESS4_DELETE,
        None => 0,
    }
}
