//! Which flavors of security an object takes: all take the same, and WRONGSEC is never said.

use protocol::nfs4::{Secinfo, SecinfoOk};

use super::compound::Compound;

/// The most preferred first.
pub(super) fn flavors() -> SecinfoOk {
    SecinfoOk::new(vec![Secinfo::Flavor(rpc::auth::AUTH_SYS), Secinfo::Flavor(rpc::auth::AUTH_NONE)])
        .unwrap_or_default()
}

/// In minor version 1 and up the current handle is used up by the question (RFC 8881, section 2.6.3.1.1.8).
pub(super) fn consume_handle(compound: &mut Compound<'_>) {
    if compound.minor > 0 {
        compound.current = None;
    }
}
