//! `share_access` and `share_deny`, and the delegation that the client wants.

use protocol::nfs4::{
    OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WANT_CANCEL, OPEN4_SHARE_ACCESS_WANT_DELEG_MASK,
    OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS, OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION,
    OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED,
    OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL, OPEN4_SHARE_DENY_BOTH, Status,
};
use vfs::{Share, Shares};

/// The shares that `share_access` and `share_deny` of OPEN or OPEN_DOWNGRADE name.
///
/// # Errors
/// `Inval` for an empty access mode and for unknown bits.
pub(in crate::nfs4::op) fn shares_of(access: u32, deny: u32, minor: u32) -> Result<Shares, Status> {
    let wants = if minor == 0 { 0 } else { wants(access)? };
    let bits = access & !wants;
    if bits == 0 || bits & !OPEN4_SHARE_ACCESS_BOTH != 0 || deny & !OPEN4_SHARE_DENY_BOTH != 0 {
        return Err(Status::Inval);
    }
    let share = |bits: u32| Share::from_bits_truncate(bits as u8);
    Ok(Shares { access: share(bits), deny: share(deny) })
}

/// The bits of the access mode that express wants.
fn wants(access: u32) -> Result<u32, Status> {
    let known = OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
        | OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
        | OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED
        | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
        | OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION;
    if access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK > OPEN4_SHARE_ACCESS_WANT_CANCEL {
        return Err(Status::Inval);
    }
    Ok(access & known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bits_that_there_are() {
        let both = Shares { access: Share::all(), deny: Share::empty() };
        assert_eq!(shares_of(3, 0, 0), Ok(both));
        assert_eq!(shares_of(0x0403, 0, 1), Ok(both));
        assert_eq!(shares_of(0x3_0103, 0, 1), Ok(both));
        for (access, deny, minor) in [
            (0, 0, 0),
            (4, 0, 0),
            (1, 4, 0),
            (0x0401, 0, 0),
            (0x0600, 0, 1),
            (0x0601, 0, 1),
            (0x0400, 0, 1),
            (9, 0, 1),
        ] {
            assert_eq!(shares_of(access, deny, minor), Err(Status::Inval), "{access:x} {deny:x} {minor}");
        }
    }
}
