//! Negotiates the attributes of a channel (RFC 8881, section 18.36.3): the client's request, within the
//! server's limits.

use protocol::nfs4::{ChannelAttrs, OPERATIONS_MAX, Status};

/// Largest request and reply: a transfer of 1 MiB, and space for the rest of the message.
const MESSAGE_BYTES_MAX: u32 = (1 << 20) + (64 << 10);
/// Largest reply that is kept for a retry.
const CACHED_BYTES_MAX: u32 = 8 << 10;
/// A request of SEQUENCE alone, with an RPC header and a short credential.
const REQUEST_BYTES_MIN: u32 = 128;
/// A reply of SEQUENCE alone.
const REPLY_BYTES_MIN: u32 = 96;
/// Slots of the fore channel. Transfers of 1 MiB in each of them cover a bandwidth-delay product of 512 MiB.
const SLOTS_MAX: u32 = 512;
/// CB_SEQUENCE and CB_RECALL with the longest handle.
const CALLBACK_BYTES_MIN: u32 = 320;
/// Most slots of the backchannel that the server uses.
const CALLBACK_SLOTS_MAX: u32 = 16;

/// The fore channel.
///
/// # Errors
/// `TooSmall` if not even SEQUENCE fits.
pub(crate) fn negotiated_fore(asked: &ChannelAttrs) -> Result<ChannelAttrs, Status> {
    if asked.maxrequestsize < REQUEST_BYTES_MIN || asked.maxresponsesize < REPLY_BYTES_MIN {
        return Err(Status::TooSmall);
    }
    let maxresponsesize = asked.maxresponsesize.min(MESSAGE_BYTES_MAX);
    Ok(ChannelAttrs {
        headerpadsize: 0,
        maxrequestsize: asked.maxrequestsize.min(MESSAGE_BYTES_MAX),
        maxresponsesize,
        maxresponsesize_cached: asked.maxresponsesize_cached.min(CACHED_BYTES_MAX).min(maxresponsesize),
        maxoperations: asked.maxoperations.clamp(1, OPERATIONS_MAX as u32),
        maxrequests: asked.maxrequests.clamp(1, SLOTS_MAX),
        rdma_ird: None,
    })
}

/// The backchannel, whose limits the client sets.
///
/// # Errors
/// `TooSmall` if not even a recall fits.
pub(crate) fn negotiated_back(asked: &ChannelAttrs) -> Result<ChannelAttrs, Status> {
    let too_small = asked.maxrequestsize < CALLBACK_BYTES_MIN
        || asked.maxresponsesize < REPLY_BYTES_MIN
        || asked.maxoperations < 2;
    if too_small {
        return Err(Status::TooSmall);
    }
    Ok(ChannelAttrs {
        headerpadsize: 0,
        maxrequestsize: asked.maxrequestsize.min(MESSAGE_BYTES_MAX),
        maxresponsesize: asked.maxresponsesize.min(MESSAGE_BYTES_MAX),
        maxresponsesize_cached: 0,
        maxoperations: asked.maxoperations.min(OPERATIONS_MAX as u32),
        maxrequests: asked.maxrequests.clamp(1, CALLBACK_SLOTS_MAX),
        rdma_ird: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_within_bounds_or_none() {
        let all = |value| ChannelAttrs {
            headerpadsize: 9,
            maxrequestsize: value,
            maxresponsesize: value,
            maxresponsesize_cached: value,
            maxoperations: value,
            maxrequests: value,
            rdma_ird: None,
        };
        let fore = negotiated_fore(&all(u32::MAX)).unwrap();
        assert_eq!((fore.maxrequestsize, fore.maxrequests), (MESSAGE_BYTES_MAX, SLOTS_MAX));
        assert!(fore.maxresponsesize_cached <= fore.maxresponsesize && fore.headerpadsize == 0);
        assert_eq!(negotiated_fore(&all(20)), Err(Status::TooSmall));
        assert_eq!(negotiated_back(&all(20)), Err(Status::TooSmall));
        assert_eq!(negotiated_back(&ChannelAttrs { maxoperations: 1, ..all(4096) }), Err(Status::TooSmall));
        assert_eq!(negotiated_back(&all(4096)).unwrap().maxrequests, CALLBACK_SLOTS_MAX);
        assert_eq!(negotiated_fore(&ChannelAttrs { maxrequests: 0, ..all(4096) }).unwrap().maxrequests, 1);
    }
}
