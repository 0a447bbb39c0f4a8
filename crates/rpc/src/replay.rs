//! The reply cache: calls that must not happen twice happen once.
//!
//! A call is known by its client's address, its xid, its credential and a checksum of what it asks. While it runs, the
//! same call again waits for it; afterwards it gets the same reply, byte for byte. Replies are kept for [`KEPT`] and in
//! bounded number and size.
//!
//! The port is not part of that: a client whose connection broke sends its call again from another port. But a client
//! that starts over, and whose xids do as well, sends the very bytes of an earlier call and means a new one. Those two
//! differ in how the earlier connection ended. A client that closes it in order, after every call was answered and its
//! TCP has acknowledged every reply, has heard the replies ([`ReplyCache::heard`]). From then on they go to calls from
//! the same port only (Linux's client reconnects from it). A call from another port runs: as a new one if the first
//! failed, and as resent if it took effect, because a relay may have acknowledged what the client never got.
//!
//! With a log on disk this holds across `kill -9`: that a call is about to run is written before it runs, its reply
//! before that is sent. A call that ran in an earlier life and was not answered is admitted again, marked as resent, so
//! that the layers below can find out whether it had taken effect (`vfs::replay`).

mod log;

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher};
use tokio::sync::watch;
use tokio::time::Instant;
use xdr::Message;

use crate::auth::{AUTH_NONE, AUTH_SYS, Credential};
use crate::message::CallHeader;
use log::{Log, Record};

/// How long a reply is kept: as Linux's server does, and far longer than any client waits before it asks again.
pub const KEPT: Duration = Duration::from_secs(120);
/// How many calls are remembered at most.
const ENTRIES_MAX: usize = 16_384;
/// Larger replies are not remembered; those of calls worth remembering have a few hundred bytes.
const REPLY_MAX_BYTES: usize = 4096;

/// Where the results are in a successful reply: behind xid, message type, reply status, an empty verifier, accept status.
const RESULTS_AT: usize = 24;

/// What a call is known by.
pub type Key = u128;

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Address and port.
    pub address: SocketAddr,
    /// The number of its connection; `None` for a datagram.
    pub connection: Option<u64>,
}

/// For how long a reply answers the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLifetime {
    /// For [`KEPT`], wherever it comes from.
    Kept,
    /// The same, until the client is known to have heard it; then for calls from the same port only.
    UntilHeard,
}

/// What to do with a call.
#[derive(Debug)]
pub enum Admission {
    /// Carry it out, and report to the slot.
    Execute {
        /// Where the reply goes.
        slot: Slot,
        /// It was received before, and may have taken effect.
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
    Answered(Answered),
}

#[derive(Debug)]
struct Answered {
    reply: Bytes,
    /// Who asked; not known of an earlier life.
    from: Option<Sender>,
    run_to_completion: ReplyLifetime,
    /// The client has got the reply.
    heard: bool,
}

impl Answered {
    fn is_for(&self, sender: Sender) -> bool {
        !self.heard || self.from.is_some_and(|from| from.address.port() == sender.address.port())
    }

    /// Results of the programs whose replies are remembered begin with a status, zero for success.
    fn took_effect(&self) -> bool {
        self.reply.get(RESULTS_AT..RESULTS_AT + 4) == Some(&[0; 4])
    }
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
    sender: Sender,
    run_to_completion: ReplyLifetime,
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
                Record::Reply(key, reply) => {
                    let answered =
                        Answered { reply, from: None, run_to_completion: ReplyLifetime::Kept, heard: false };
                    table.enter(now, key, Entry::Answered(answered));
                }
                Record::Forget(key) => drop(table.entries.remove(&key)),
            }
        }
        Ok(Arc::new(ReplyCache { table: Mutex::new(table), log: Some(Mutex::new(log)) }))
    }

    /// Looks a call up, and enters it if it is new.
    pub fn admit(
        self: &Arc<ReplyCache>,
        sender: Sender,
        header: &CallHeader,
        arguments: &[u8],
        run_to_completion: ReplyLifetime,
    ) -> Admission {
        let key = key(sender.address.ip().to_canonical(), header, arguments);
        let mut table = self.table.lock();
        table.expire(Instant::now());
        let resent = match table.entries.get(&key) {
            Some(Entry::Answered(answered)) if answered.is_for(sender) => {
                return Admission::Answered(Message { first: answered.reply.clone(), more: Vec::new() });
            }
            Some(Entry::Answered(answered)) => answered.took_effect(),
            Some(Entry::Running(done)) => return Admission::Running(done.clone()),
            Some(Entry::Unanswered) => true,
            None => false,
        };
        let (done, receiver) = watch::channel(None);
        table.enter(Instant::now(), key, Entry::Running(receiver));
        drop(table);
        self.write(&Record::Intent(key));
        let slot = Slot { cache: self.clone(), key, sender, run_to_completion, done: Some(done) };
        Admission::Execute { slot, resent }
    }

    /// The client closed a connection in order, with no call unanswered and every reply acknowledged.
    pub fn heard(&self, connection: u64) {
        let mut records = Vec::new();
        for (key, entry) in &mut self.table.lock().entries {
            if let Entry::Answered(answered) = entry
                && answered.run_to_completion == ReplyLifetime::UntilHeard
                && answered.from.is_some_and(|from| from.connection == Some(connection))
            {
                answered.heard = true;
                // After a restart the port is not known: the reply is for nobody then.
                let took_effect = answered.took_effect();
                records.push(if took_effect { Record::Intent(*key) } else { Record::Forget(*key) });
            }
        }
        records.iter().for_each(|record| self.write(record));
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
            let (from, run_to_completion) = (Some(self.sender), self.run_to_completion);
            let answered = Answered { reply: bytes.clone(), from, run_to_completion, heard: false };
            self.cache.table.lock().enter(Instant::now(), self.key, Entry::Answered(answered));
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
    match &header.credential {
        Credential::None => hasher.write(&AUTH_NONE.to_be_bytes()),
        Credential::Other(flavor) => hasher.write(&flavor.to_be_bytes()),
        // All but the stamp: a client may make a new one for each time it sends.
        Credential::Sys(sys) => {
            let (machine, groups) = (sys.machine.len() as u32, sys.gids.len() as u32);
            let numbers = [AUTH_SYS, sys.uid, sys.gid, machine, groups];
            numbers.iter().chain(sys.gids.iter()).for_each(|number| hasher.write(&number.to_be_bytes()));
            hasher.write(&sys.machine);
        }
    }
    hasher.write(arguments);
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests;
