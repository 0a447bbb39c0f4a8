//! Why a call has no results.

use std::sync::Arc;

use crate::message::Refusal;
use crate::rpcsec_gss::initiator;

/// Why a call has no results.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The caller's patience ended.
    #[error("no answer in time")]
    TimedOut,
    /// The server refused the call.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The reply does not decode.
    #[error("malformed reply: {0}")]
    Malformed(#[from] xdr::Error),
    /// The call does not fit into a datagram.
    #[error("a call of {0} bytes does not fit into a datagram")]
    TooLarge(usize),
    /// The link was closed.
    #[error("the link is closed")]
    Closed,
    /// The user has no context, or it is of no use.
    #[error("no Kerberos context: {0}")]
    Context(NoContext),
}

impl CallError {
    /// Does it say nothing about whether the server answers?
    pub fn is_silence(&self) -> bool {
        match self {
            CallError::TimedOut | CallError::TooLarge(_) | CallError::Closed | CallError::Context(_) => true,
            CallError::Refused(_) | CallError::Malformed(_) => false,
        }
    }
}

/// Why a user has no context, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NoContext {
    why: Arc<str>,
    kdc_is_silent: bool,
}

impl NoContext {
    /// A cause that stays until somebody removes it, as far as is known.
    pub fn because(why: &str) -> NoContext {
        NoContext { why: why.into(), kdc_is_silent: false }
    }

    /// `why`, which this error has caused.
    pub fn of(error: &initiator::Error, why: &str) -> NoContext {
        NoContext { why: why.into(), kdc_is_silent: error.is_no_answer() }
    }

    /// Did no KDC answer? One may answer later.
    pub fn is_no_answer(&self) -> bool {
        self.kdc_is_silent
    }
}
