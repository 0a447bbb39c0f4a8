//! The slots of a fore channel (RFC 8881, section 2.10.6.1). Each runs one request at a time and keeps its
//! reply for a retry.

use protocol::nfs4::Status;
use xdr::Message;

/// Distinguishes a retry from another request with the same sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u64);

/// How to treat a request in a slot.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// It is the next one.
    Execute,
    /// It is a retry of the last one.
    Replay(Message),
}

#[derive(Debug)]
enum Slot {
    /// Never used: the first sequence id is 1.
    Fresh,
    /// A request is running.
    Busy { sequence: u32, digest: Digest },
    /// The last request is done; `reply` is `None` if its reply was not kept.
    Done { sequence: u32, digest: Digest, reply: Option<Message> },
}

/// All slots of a session. Those behind the last one that was used take no memory: most clients use few of
/// the slots that they ask for.
#[derive(Debug)]
pub(crate) struct Slots {
    used: Vec<Slot>,
    count: usize,
}

impl Slots {
    /// `count` unused slots.
    pub(crate) fn new(count: u32) -> Slots {
        Slots { used: Vec::new(), count: count as usize }
    }

    /// The slot, with memory for it.
    fn get(&mut self, slot: u32) -> Option<&mut Slot> {
        let slot = slot as usize;
        if slot >= self.count {
            return None;
        }
        if slot >= self.used.len() {
            self.used.resize_with(slot + 1, || Slot::Fresh);
        }
        self.used.get_mut(slot)
    }

    /// A request arrives.
    ///
    /// # Errors
    /// See [`super::Sessions::begin`].
    pub(crate) fn begin(&mut self, slot: u32, sequence: u32, digest: Digest) -> Result<Turn, Status> {
        let slot = self.get(slot).ok_or(Status::BadSlot)?;
        let is_next = match slot {
            Slot::Fresh => sequence == 1,
            Slot::Busy { sequence: running, .. } if *running == sequence => return Err(Status::Delay),
            Slot::Busy { .. } => false,
            Slot::Done { sequence: last, digest: other, reply } if *last == sequence => {
                return match reply {
                    _ if *other != digest => Err(Status::SeqFalseRetry),
                    Some(reply) => Ok(Turn::Replay(reply.clone())),
                    None => Err(Status::RetryUncachedRep),
                };
            }
            Slot::Done { sequence: last, .. } => sequence == last.wrapping_add(1),
        };
        if !is_next {
            return Err(Status::SeqMisordered);
        }
        *slot = Slot::Busy { sequence, digest };
        Ok(Turn::Execute)
    }

    /// Removes the slots beyond the first `count`, unless one of those is busy. False if one is.
    pub(crate) fn truncate(&mut self, count: u32) -> bool {
        let count = count as usize;
        let others = self.used.get(count..).unwrap_or_default();
        let free = !others.iter().any(|slot| matches!(slot, Slot::Busy { .. }));
        if free {
            self.used.truncate(count);
            self.count = self.count.min(count);
        }
        free
    }

    /// Is more than half of the slots busy? In a session with a single slot the requester itself occupies
    /// it.
    pub(crate) fn is_half_busy(&self) -> bool {
        let busy = self.used.iter().filter(|slot| matches!(slot, Slot::Busy { .. })).count();
        2 * busy > self.count
    }

    /// Bytes of the slots without their replies.
    pub(crate) fn bytes(&self) -> usize {
        self.used.capacity() * size_of::<Slot>()
    }

    /// Bytes of the replies that are kept.
    pub(crate) fn reply_bytes(&self) -> usize {
        let of = |slot: &Slot| match slot {
            Slot::Done { reply: Some(reply), .. } => reply.len(),
            _ => 0,
        };
        self.used.iter().map(of).sum()
    }

    /// The running request is done.
    pub(crate) fn complete(&mut self, slot: u32, reply: Option<Message>) {
        if let Some(slot) = self.used.get_mut(slot as usize)
            && let Slot::Busy { sequence, digest } = *slot
        {
            *slot = Slot::Done { sequence, digest, reply };
        }
    }
}
