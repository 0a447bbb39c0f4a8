//! The state of the model: the holder, the server, and the messages between them.

/// The number of names in the directory.
pub const NAMES: usize = 2;

/// The file that each name leads to.
pub type Names = [Option<u8>; NAMES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    Create(usize),
    Remove(usize),
    Rename(usize, usize),
}

impl Change {
    pub const ALL: [Change; 6] = [
        Change::Create(0),
        Change::Create(1),
        Change::Remove(0),
        Change::Remove(1),
        Change::Rename(0, 1),
        Change::Rename(1, 0),
    ];

    /// The names after this change, if it can be done. `number` is that of the change.
    pub fn apply(self, names: Names, number: u8) -> Option<Names> {
        let mut after = names;
        match self {
            Change::Create(name) if names[name].is_none() => after[name] = Some(number),
            Change::Remove(name) if names[name].is_some() => after[name] = None,
            Change::Rename(from, to) if names[from].is_some() => {
                after[to] = after[from].take();
            }
            _ => return None,
        }
        Some(after)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub session: u8,
    pub leased: bool,
    pub recalled: bool,
    /// Durable: the names before the changes in the journal.
    pub base: Names,
    /// Durable: changes that were answered. The first one has the number `first`.
    pub journal: Vec<Change>,
    pub first: u8,
    /// How many of them are known to be done, and how many were sent.
    pub done: usize,
    pub sent: usize,
    /// The names at the server must be compared before more is sent.
    pub compares: bool,
    /// Durable: numbers of the changes that could not be sent.
    pub conflicts: Vec<u8>,
}

impl Holder {
    /// The names after so many changes of the journal.
    pub fn after(&self, count: usize) -> Option<Names> {
        let numbered = self.journal[..count].iter().zip(self.first..);
        numbered.clone().try_fold(self.base, |names, (change, number)| change.apply(names, number))
    }

    /// The lease is lost: what was not acknowledged becomes a conflict.
    pub fn give_up(&mut self) {
        let left = self.first + self.done as u8..self.first + self.journal.len() as u8;
        self.conflicts.extend(left);
        self.base = self.after(self.done).unwrap_or(self.base);
        self.first += self.journal.len() as u8;
        self.journal.clear();
        (self.done, self.sent, self.leased, self.recalled, self.compares) = (0, 0, false, false, false);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The session of the holder. `None` after a restart.
    pub session: Option<u8>,
    pub names: Names,
    /// Changes that were done and are not durable yet: the names before them, the number of the first one,
    /// and how many they are.
    pub unsynced: Option<(Names, u8, u8)>,
    /// The last change of this session.
    pub executed: Option<u8>,
    pub leased: bool,
    /// A lease of before the restart may be reclaimed.
    pub reclaimable: bool,
    /// A reader waits. The number of changes that were answered when it asked.
    pub waiting: Option<u8>,
    /// Another client waits to change this name.
    pub changing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Body {
    /// The number of the first change, and how many follow from there.
    Changes(u8, u8),
    Done(u8),
    /// The lease does not stand any more.
    Refused,
    Recall,
    Return,
}

/// A message of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub session: u8,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub holder: Holder,
    pub server: Server,
    /// Sorted, so that equal states compare equal.
    pub net: Vec<Message>,
    pub sessions: u8,
    pub answered: u8,
    pub looks: u8,
    pub others: u8,
    pub crashes: (u8, u8),
    /// For the checker: all changes that were answered, and how many of them the server has done in effect.
    pub all: Vec<Change>,
    pub effected: u8,
    /// The names at the start, and after the last change of another client.
    pub foreign: Names,
    /// Changes up to this number lie before that one.
    pub before: u8,
    pub revoked: bool,
    pub seen: bool,
    pub stale: bool,
    pub wrong: bool,
}

impl State {
    /// The holder begins a session. The server knows no change of it. If that `ends` the session before,
    /// nobody hears its messages any more.
    pub fn begin_session(&mut self, ends: bool) {
        self.sessions += 1;
        self.net.retain(|message| !ends && matches!(message.body, Body::Changes(..) | Body::Return));
        self.holder.session = self.sessions;
        (self.server.session, self.server.executed) = (Some(self.sessions), None);
    }

    pub fn send(&mut self, session: u8, body: Body) {
        let message = Message { session, body };
        if !self.net.contains(&message) {
            self.net.push(message);
            self.net.sort_unstable();
        }
    }

    /// For the checker: are the names those after some of the changes?
    pub fn judge(&mut self, number: u8) {
        self.effected = self.effected.max(number);
        self.wrong |= self.expected(number) != Some(self.server.names);
    }

    /// The server dies, and keeps so many of the changes that were not durable.
    pub fn crash_server(&mut self, keeps: u8) {
        self.crashes.0 += 1;
        if let Some((before, first, _)) = self.server.unsynced.take() {
            let kept = (first..first + keeps).fold(before, |names, number| {
                self.all[usize::from(number) - 1].apply(names, number).unwrap_or(names)
            });
            self.server.names = kept;
            self.effected = self.effected.min((first + keeps).saturating_sub(1));
        }
        let server = &mut self.server;
        server.reclaimable |= server.leased;
        (server.session, server.executed, server.leased) = (None, None, false);
        // Sessions end with the server.
        self.net.clear();
    }

    /// The names after the first changes of the holder since another client's.
    pub fn expected(&self, count: u8) -> Option<Names> {
        let numbered = self.all.iter().zip(1..).filter(|(_, number)| *number > self.before);
        let mut names = self.foreign;
        for (change, number) in numbered.take_while(|(_, number)| *number <= count) {
            names = change.apply(names, number)?;
        }
        Some(names)
    }
}
