//! The reply cache: a non-idempotent call is executed once, even if its client sends it twice.
//!
//! The cache identifies a call by its client's address, its xid, its credential and a checksum of its
//! arguments. While the call runs, a copy of it waits for the result. Afterwards a copy gets the same reply,
//! byte for byte. The cache keeps replies for [`KEPT`], with a bound on their number and size.
//!
//! The client's port is not part of the identity: if its connection breaks, a client resends from another
//! port. But a restarted client whose xids start over may send the exact bytes of an earlier call and mean a
//! new call. How the earlier connection ended tells the two cases apart. A client has heard its replies if it
//! closes its connection in order, every call was answered, and its TCP has acknowledged every reply
//! ([`ReplyCache::heard`]). From then on, only calls from the same port get those replies (Linux's client
//! reconnects from the same port). A call from another port runs again. It runs as a new call if the first
//! one failed. If the first one took effect it runs as resent, because a relay may have acknowledged a reply
//! that the client never got.
//!
//! With a log on disk this holds across `kill -9`. The log records a call before it runs, and its reply
//! before the reply is sent. If a call ran in an earlier incarnation of the server and was not answered, the
//! cache admits it again, marked as resent. The layers below then find out whether it took effect
//! (`vfs::replay`).
//!
//! A server that has just started puts such a call off: its session is gone, or the grace period is on. The
//! client then makes the same call with another xid, in another session. So a call also has an identity
//! without them ([`ReplyCache::admit`]). If a resent call was put off, the next call of that identity counts
//! as resent.
//!
//! Where a slot of a session keeps the reply, the cache answers after a restart alone
//! ([`ReplyLifetime::Slot`]).

mod log;

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher};
use tokio::sync::watch;
use tokio::time::Instant;
use xdr::Message;

use crate::auth::{AUTH_NONE, AUTH_SYS, Credential};
use crate::message::CallHeader;
use crate::rpcsec_gss::RPCSEC_GSS;
use log::{Log, Record};

/// How long the cache keeps a reply: as long as Linux's server does, and far longer than any client waits
/// before it resends.
pub const KEPT: Duration = Duration::from_secs(120);
/// Most calls in the cache.
const ENTRIES_MAX: usize = 16_384;
/// Most calls that were put off and are waited for.
const PUT_OFF_MAX: usize = 4096;
/// The cache does not keep larger replies. Replies to non-idempotent calls have a few hundred bytes.
const REPLY_MAX_BYTES: usize = 4096;

/// Offset of the results in a successful reply: after xid, message type, reply status, an empty verifier and
/// accept status.
const RESULTS_AT: usize = 24;

/// The identity of a call.
pub type Key = u128;

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Address and port.
    pub address: SocketAddr,
    /// Number of its connection; `None` for a datagram.
    pub connection: Option<u64>,
}

/// Which copies of a call get its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLifetime {
    /// Every copy for [`KEPT`], from any port.
    Kept,
    /// Every copy, until the client is known to have heard the reply. After that, only copies from the same
    /// port.
    UntilHeard,
    /// Every copy after a restart. Before it, the slot of a session answers a copy.
    Slot,
}

/// What to do with a call.
#[derive(Debug)]
pub enum Admission {
    /// Execute the call, and report to the slot.
    Execute {
        /// Takes the reply.
        slot: Slot,
        /// The call was received before, and may have taken effect.
        resent: bool,
    },
    /// The call was executed with this reply.
    Answered(Message),
    /// The call is running. The reply arrives here.
    Running(watch::Receiver<Option<Message>>),
}

#[derive(Debug)]
enum Entry {
    /// Received in an earlier incarnation, or dropped before its end in this one.
    Unanswered,
    Running(watch::Receiver<Option<Message>>),
    Answered(Answered),
}

#[derive(Debug)]
struct Answered {
    reply: Bytes,
    /// The sender. `None` for a reply of an earlier incarnation.
    from: Option<Sender>,
    lifetime: ReplyLifetime,
    /// The client has got the reply.
    heard: bool,
}

impl Answered {
    fn is_for(&self, sender: Sender) -> bool {
        !self.heard || self.from.is_some_and(|from| from.address.port() == sender.address.port())
    }

    /// The results of every program whose replies are kept begin with a status, which is zero for success.
    fn took_effect(&self) -> bool {
        self.reply.get(RESULTS_AT..RESULTS_AT + 4) == Some(&[0; 4])
    }
}

#[derive(Debug, Default)]
struct Table {
    /// Each with the time of its latest change.
    entries: HashMap<Key, (Instant, Entry)>,
    /// Keys in the order of their changes, with the time. A key may occur more than once.
    order: VecDeque<(Instant, Key)>,
    /// The identities without session of resent calls that were put off, with the time.
    put_off: HashMap<Key, Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct ReplyCache {
    table: Mutex<Table>,
    log: Option<Mutex<Log>>,
}

/// The right and the duty to answer one call.
#[derive(Debug)]
pub struct Slot {
    cache: Arc<ReplyCache>,
    key: Key,
    /// The identity without session.
    sessionless: Option<Key>,
    resent: bool,
    sender: Sender,
    lifetime: ReplyLifetime,
    done: Option<watch::Sender<Option<Message>>>,
}

impl ReplyCache {
    /// A cache without a log on disk.
    pub fn volatile() -> Arc<ReplyCache> {
        Arc::default()
    }

    /// A cache with its log in `directory`, which must exist. Loads the entries that an earlier incarnation
    /// logged there.
    pub fn open(directory: &Path) -> io::Result<Arc<ReplyCache>> {
        let (log, records) = Log::open(directory)?;
        let mut table = Table::default();
        let now = Instant::now();
        for record in records {
            match record {
                Record::Intent(key) => table.enter(now, key, Entry::Unanswered),
                Record::PutOff(key, at) => {
                    if is_kept(at) {
                        table.put_off(now, key);
                    }
                }
                Record::Reply(key, reply) => {
                    let answered =
                        Answered { reply, from: None, lifetime: ReplyLifetime::Kept, heard: false };
                    table.enter(now, key, Entry::Answered(answered));
                }
                Record::Forget(key) => drop(table.entries.remove(&key)),
            }
        }
        Ok(Arc::new(ReplyCache { table: Mutex::new(table), log: Some(Mutex::new(log)) }))
    }

    /// Looks up a call, and enters it if it is new. `sessionless` are the arguments as they are in any
    /// session, if a client may make the call again in another one. They identify a call that was put off
    /// ([`Slot::put_off`]).
    pub fn admit(
        self: &Arc<ReplyCache>,
        sender: Sender,
        header: &CallHeader,
        (arguments, sessionless): (&[u8], Option<&[u8]>),
        lifetime: ReplyLifetime,
    ) -> Admission {
        let client = sender.address.ip().to_canonical();
        let key = key(client, header, Some(header.xid), arguments);
        let sessionless = sessionless.map(|arguments| self::key(client, header, None, arguments));
        let mut table = self.table.lock();
        table.expire(Instant::now());
        let resent = match table.get(key) {
            Some(Entry::Answered(answered)) if answered.is_for(sender) => {
                return Admission::Answered(Message { first: answered.reply.clone(), more: Vec::new() });
            }
            Some(Entry::Answered(answered)) => answered.took_effect(),
            Some(Entry::Running(done)) => return Admission::Running(done.clone()),
            Some(Entry::Unanswered) => true,
            None => false,
        };
        // Only one of several such calls can be the copy.
        let was_put_off = sessionless.is_some_and(|key| table.put_off.remove(&key).is_some());
        let resent = resent || was_put_off;
        let (done, receiver) = watch::channel(None);
        table.enter(Instant::now(), key, Entry::Running(receiver));
        drop(table);
        self.write(&Record::Intent(key));
        let slot = Slot { cache: self.clone(), key, sessionless, resent, sender, lifetime, done: Some(done) };
        Admission::Execute { slot, resent }
    }

    /// Notes that the client closed the connection in order, with every call answered and every reply
    /// acknowledged.
    pub fn heard(&self, connection: u64) {
        let mut records = Vec::new();
        for (key, (_, entry)) in &mut self.table.lock().entries {
            if let Entry::Answered(answered) = entry
                && answered.lifetime == ReplyLifetime::UntilHeard
                && answered.from.is_some_and(|from| from.connection == Some(connection))
            {
                answered.heard = true;
                // The log has no ports, so after a restart this reply may go to no call. Log what the next
                // copy must find instead.
                let took_effect = answered.took_effect();
                records.push(if took_effect { Record::Intent(*key) } else { Record::Forget(*key) });
            }
        }
        records.iter().for_each(|record| self.write(record));
    }

    /// A copy of this call is a new call. That is logged first: a copy that came in between would log that it
    /// has begun.
    fn remove(&self, key: Key) {
        self.write(&Record::Forget(key));
        self.table.lock().entries.remove(&key);
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
    /// The call was executed. The caller must call this before it sends the reply.
    pub fn complete(mut self, reply: &Message) {
        let Some(done) = self.done.take() else { return };
        let kept = (reply.len() <= REPLY_MAX_BYTES).then(|| reply.to_bytes().ok()).flatten();
        if let Some(bytes) = &kept {
            self.cache.write(&Record::Reply(self.key, bytes.clone()));
        }
        if let Some(key) = self.sessionless
            && self.resent
        {
            self.cache.write(&Record::Forget(key));
        }
        let kept = kept.filter(|_| self.lifetime != ReplyLifetime::Slot);
        if let Some(reply) = kept {
            let answered = Answered { reply, from: Some(self.sender), lifetime: self.lifetime, heard: false };
            self.cache.table.lock().enter(Instant::now(), self.key, Entry::Answered(answered));
        } else {
            self.cache.table.lock().entries.remove(&self.key);
        }
        done.send_replace(Some(reply.clone()));
    }

    /// The call was not executed, and the reply tells the client to make it again. It may do so with another
    /// xid, in another session. If this call may have taken effect before, the next one of the same identity
    /// without session is resent.
    pub fn put_off(mut self, reply: &Message) {
        if let Some(key) = self.sessionless
            && self.resent
        {
            self.cache.write(&Record::PutOff(key, unix_seconds()));
            self.cache.table.lock().put_off(Instant::now(), key);
        }
        let done = self.done.take();
        self.cache.remove(self.key);
        if let Some(done) = done {
            done.send_replace(Some(reply.clone()));
        }
    }

    /// The call was not executed at all. A copy of it is a new call.
    pub fn forget(mut self) {
        self.done.take();
        self.cache.remove(self.key);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The call was dropped before its end. It may have taken effect, so the next copy runs as resent.
        if self.done.is_some() {
            self.cache.table.lock().enter(Instant::now(), self.key, Entry::Unanswered);
        }
    }
}

impl Table {
    fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key).map(|(_, entry)| entry)
    }

    fn enter(&mut self, now: Instant, key: Key, entry: Entry) {
        self.entries.insert(key, (now, entry));
        self.order.push_back((now, key));
        while self.entries.len() > ENTRIES_MAX || self.order.len() > 4 * ENTRIES_MAX {
            let Some((entered, oldest)) = self.order.pop_front() else { break };
            self.drop_if_old(entered, oldest);
        }
    }

    fn put_off(&mut self, now: Instant, key: Key) {
        if self.put_off.len() >= PUT_OFF_MAX
            && let Some(oldest) = self.put_off.iter().min_by_key(|(_, at)| **at).map(|(key, _)| *key)
        {
            self.put_off.remove(&oldest);
        }
        self.put_off.insert(key, now);
    }

    fn expire(&mut self, now: Instant) {
        self.put_off.retain(|_, at| now.saturating_duration_since(*at) < KEPT);
        while let Some(&(entered, key)) = self.order.front() {
            if now.saturating_duration_since(entered) < KEPT {
                break;
            }
            self.order.pop_front();
            self.drop_if_old(entered, key);
        }
    }

    /// Drops the entry of a key that reached the front of the order, unless it is running or has changed
    /// since.
    fn drop_if_old(&mut self, entered: Instant, key: Key) {
        let is_old =
            |(changed, entry): &(Instant, Entry)| *changed <= entered && !matches!(entry, Entry::Running(_));
        if self.entries.get(&key).is_some_and(is_old) {
            self.entries.remove(&key);
        }
    }
}

/// Whether a call that was put off at `at` can still come again. A clock that was set back keeps it.
fn is_kept(at: u64) -> bool {
    unix_seconds().saturating_sub(at) < KEPT.as_secs()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Computes the identity of a call, with an xid or without. It must be the same in the next incarnation, so
/// the hash has a fixed key. A client that finds a collision can deceive only itself, because its address is
/// part of the hash.
fn key(client: IpAddr, header: &CallHeader, xid: Option<u32>, arguments: &[u8]) -> Key {
    let mut hasher = SipHasher::new();
    hasher.write(&[u8::from(xid.is_some())]);
    match client {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
    for word in [xid.unwrap_or(0), header.program, header.version, header.procedure] {
        hasher.write(&word.to_be_bytes());
    }
    match &header.credential {
        Credential::None => hasher.write(&AUTH_NONE.to_be_bytes()),
        Credential::Tls => hasher.write(&crate::auth::AUTH_TLS.to_be_bytes()),
        Credential::Other(flavor) => hasher.write(&flavor.to_be_bytes()),
        // A call that was not checked has not come this far.
        Credential::Gss(_) => hasher.write(&RPCSEC_GSS.to_be_bytes()),
        Credential::Proven(proven) => {
            hasher.write(&RPCSEC_GSS.to_be_bytes());
            let principal = proven.user.principal.as_bytes();
            let numbers = [proven.protection as u32, principal.len() as u32];
            numbers.iter().for_each(|number| hasher.write(&number.to_be_bytes()));
            hasher.write(principal);
        }
        // Skip the stamp: a client may choose a new one each time it sends.
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
