//! The connections of sessions.

use std::sync::{Arc, Weak};

use rpc::Connection;

use super::sessions::Bond;

/// A connection, as sessions need to know it. It does not keep the connection open.
#[derive(Clone, Debug)]
pub(crate) struct Channel(Weak<Connection>);

impl Channel {
    pub(crate) fn new(connection: &Arc<Connection>) -> Channel {
        Channel(Arc::downgrade(connection))
    }

    /// The connection, unless it is gone.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.0.upgrade()
    }
}

impl PartialEq for Channel {
    fn eq(&self, other: &Channel) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Bond for Channel {
    fn is_closed(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.is_closed())
    }
}
