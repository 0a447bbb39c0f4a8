//! The security flavors of an object: all objects accept the same ones, and WRONGSEC never occurs.

use protocol::nfs4::{Secinfo, SecinfoOk};

use super::compound::Compound;

/// The flavors, the most preferred first.
pub(super) fn flavors() -> SecinfoOk {
    SecinfoOk::new(vec![Secinfo::Flavor(rpc::auth::AUTH_SYS), Secinfo::Flavor(rpc::auth::AUTH_NONE)])
        .unwrap_or_default()
}

/// In minor version 1 and up, SECINFO consumes the current filehandle (RFC 8881, section 2.6.3.1.1.8).
pub(super) fn consume_handle(compound: &mut Compound<'_>) {
    if compound.minor > 0 {
        compound.current = None;
    }
}
