//! The reply cache: calls that must not happen twice happen once.
//!
//! A call is known by its client's address, its xid and a checksum of what it asks. While it runs, the same call again
//! waits for it; afterwards it gets the same reply, byte for byte. Replies are kept for [`KEPT`] and in bounded number
//! and size.
//!
//! With a log on disk this holds across `kill -9`: that a call is about to run is written before it runs, its reply
//! before that is sent. A call that ran in an earlier life and was not answered is admitted again, marked as resent, so
//! that the layers below can find out whether it had taken effect (`vfs::replay`).

mod log;

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher};
use tokio::sync::watch;
use tokio::time::Instant;
use xdr::Message;

use crate::message::CallHeader;
use log::{Log, Record};

/// How long a reply is kept: as Linux's server does, and far longer than any client waits before it asks again.
pub const KEPT: Duration = Duration::from_secs(120);
/// How many calls are remembered at most.
const ENTRIES_MAX: usize = 16_384;
/// Larger replies are not remembered; those of calls worth remembering have a few hundred bytes.
const REPLY_MAX_BYTES: usize = 4096;

/// What a call is known by.
pub type Key = u128;

/// What to do with a call.
#[derive(Debug)]
pub enum Admission {
    /// Carry it out, and report to the slot.
    Execute {
        /// Where the reply goes.
        slot: Slot,
        /// It was received before and never answered.
        resent: bool,
    },
    /// It was carried out, and this was the reply.
    Answered(Message),
    /// It is being carried out; the reply comes here.
    Running(watch::Receiver<Option<Message>>),
}

#[derive(Debug)]
enum Entry {
    /// Received in an earlier life, or given up in this one.
    Unanswered,
    Running(watch::Receiver<Option<Message>>),
    Answered(Bytes),
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// In the order in which they were entered or answered, with the time; a key may stand here more than once.
    order: VecDeque<(Instant, Key)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct ReplyCache {
    table: Mutex<Table>,
    log: Option<Mutex<Log>>,
}

/// The right and duty to answer one call.
#[derive(Debug)]
pub struct Slot {
    cache: Arc<ReplyCache>,
    key: Key,
    done: Option<watch::Sender<Option<Message>>>,
}

impl ReplyCache {
    /// A cache in memory alone.
    pub fn volatile() -> Arc<ReplyCache> {
        Arc::default()
    }

    /// A cache with its log in `directory`, which exists. What an earlier life logged there counts.
    pub fn open(directory: &Path) -> io::Result<Arc<ReplyCache>> {
        let (log, records) = Log::open(directory)?;
        let mut table = Table::default();
        let now = Instant::now();
        for record in records {
            match record {
                Record::Intent(key) => table.enter(now, key, Entry::Unanswered),
                Record::Reply(key, reply) => table.enter(now, key, Entry::Answered(reply)),
                Record::Forget(key) => drop(table.entries.remove(&key)),
            }
        }
        Ok(Arc::new(ReplyCache { table: Mutex::new(table), log: Some(Mutex::new(log)) }))
    }

    /// Looks a call up, and enters it if it is new.
    pub fn admit(self: &Arc<ReplyCache>, client: IpAddr, header: &CallHeader, arguments: &[u8]) -> Admission {
        let key = key(client, header, arguments);
        let mut table = self.table.lock();
        table.expire(Instant::now());
        let resent = match table.entries.get(&key) {
            Some(Entry::Answered(reply)) => {
                return Admission::Answered(Message { first: reply.clone(), more: Vec::new() });
            }
            Some(Entry::Running(done)) => return Admission::Running(done.clone()),
            Some(Entry::Unanswered) => true,
            None => false,
        };
        let (sender, receiver) = watch::channel(None);
        table.enter(Instant::now(), key, Entry::Running(receiver));
        drop(table);
        self.write(&Record::Intent(key));
        Admission::Execute { slot: Slot { cache: self.clone(), key, done: Some(sender) }, resent }
    }

    fn write(&self, record: &Record) {
        if let Some(log) = &self.log
            && let Err(error) = log.lock().append(record)
        {
            tracing::warn!(%error, "the reply log cannot be written: resends after a crash may be carried out twice");
        }
    }
}

impl Slot {
    /// The call was carried out. Call this before the reply is sent.
    pub fn complete(mut self, reply: &Message) {
        let Some(done) = self.done.take() else { return };
        let kept = (reply.len() <= REPLY_MAX_BYTES).then(|| reply.to_bytes().ok()).flatten();
        if let Some(bytes) = &kept {
            self.cache.write(&Record::Reply(self.key, bytes.clone()));
            self.cache.table.lock().enter(Instant::now(), self.key, Entry::Answered(bytes.clone()));
        } else {
            self.cache.table.lock().entries.remove(&self.key);
        }
        done.send_replace(Some(reply.clone()));
    }

    /// The call was not carried out at all: the same call again is a new one.
    pub fn forget(mut self) {
        self.done.take();
        self.cache.write(&Record::Forget(self.key));
        self.cache.table.lock().entries.remove(&self.key);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Given up in the middle: nobody knows how far it came, so the next one to ask is told that.
        if self.done.is_some() {
            self.cache.table.lock().enter(Instant::now(), self.key, Entry::Unanswered);
        }
    }
}

impl Table {
    fn enter(&mut self, now: Instant, key: Key, entry: Entry) {
        self.entries.insert(key, entry);
        self.order.push_back((now, key));
        while self.entries.len() > ENTRIES_MAX || self.order.len() > 4 * ENTRIES_MAX {
            let Some((_, oldest)) = self.order.pop_front() else { break };
            self.drop_if_old(oldest);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&(entered, key)) = self.order.front() {
            if now.saturating_duration_since(entered) < KEPT {
                break;
            }
            self.order.pop_front();
            self.drop_if_old(key);
        }
    }

    /// Drops an entry whose place in the order came up, unless it runs or stands there again further back.
    fn drop_if_old(&mut self, key: Key) {
        let running = matches!(self.entries.get(&key), Some(Entry::Running(_)));
        let again = matches!(self.entries.get(&key), Some(Entry::Answered(_)))
            && self.order.iter().take(64).any(|(_, later)| *later == key);
        if !running && !again {
            self.entries.remove(&key);
        }
    }
}

/// The key has to mean the same in the next life, so the hash has a fixed key; a client that finds a collision cheats
/// itself alone, its address being part of it.
fn key(client: IpAddr, header: &CallHeader, arguments: &[u8]) -> Key {
    let mut hasher = SipHasher::new();
    match client {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
    for word in [header.xid, header.program, header.version, header.procedure] {
        hasher.write(&word.to_be_bytes());
    }
    if let crate::auth::Credential::Sys(sys) = &header.credential {
        hasher.write(&sys.uid.to_be_bytes());
    }
    hasher.write(arguments);
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests;
