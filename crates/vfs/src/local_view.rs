//! What this machine knows without asking the origin: for the front of a local mount, and for layers that
//! choose the cheaper of two ways.

use async_trait::async_trait;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::data::CompleteFile;
use crate::handle::Handle;
use crate::name::Name;
use crate::open::OpenId;

/// Answers from memory. No method calls the origin.
#[async_trait]
pub trait LocalView {
    /// Until when the caller may believe the attributes that this layer last returned for a file, and the
    /// name that it returned the file under. This covers attribute timeouts. A lease is known to its holder.
    /// `None`: not at all.
    fn believed_until(&self, handle: &Handle) -> Option<Instant>;

    /// A counter that grows each time this layer sees that another client has changed names in the directory.
    /// After that, an attribute timeout does not confirm a name that was returned before.
    fn names_doubted(&self, directory: &Handle) -> u64;

    /// All bytes of an open file, if they are on this machine, valid as far as the layer knows, and the
    /// caller may read them.
    async fn complete_file(&self, caller: &Caller, open: OpenId) -> Option<CompleteFile>;

    /// Whether the layer remembers that a name exists. It is a hint for choosing the shorter way; no answer
    /// to a client may depend on it. `None` if looking the name up costs no more than remembering it.
    fn is_remembered(&self, directory: &Handle, name: &Name) -> Option<bool>;
}
