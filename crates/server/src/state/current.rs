//! The filehandles that a COMPOUND works on. In minor version 0 the answer kept for an owner holds one.

use std::sync::Arc;

use protocol::nfs4::Stateid;
use vfs::Handle;

use crate::exports::Export;
use crate::exports::pseudo::NodeIndex;

/// A current or saved filehandle with its state id.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) file: File,
    /// The state id of the last operation that returned one (RFC 8881, section 16.2.3.1.2).
    pub(crate) stateid: Option<Stateid>,
}

/// The object that a client's filehandle names.
#[derive(Clone, Debug)]
pub(crate) enum File {
    /// A directory above exports.
    Pseudo(NodeIndex),
    /// An object of an export.
    Object(Arc<Export>, Handle),
    /// Anything in an export that is on another server. A client can ask for its locations and nothing
    /// else.
    Absent(Arc<Export>),
}
