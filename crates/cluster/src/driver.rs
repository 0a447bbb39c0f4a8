//! Runs a [`Member`] against a store.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};

use crate::member::{Member, Orders, Refusal, View};
use crate::store::{Committed, Store, StoreError};
use crate::times::Moment;

/// Commands that wait.
const COMMANDS_MAX: usize = 256;
/// The pause after the store has refused a transaction.
const REFUSED: Duration = Duration::from_secs(1);

/// The time of this machine's clock, which goes on while the machine sleeps.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// A member as its user sees it.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The servers to run.
    pub orders: Orders,
    /// It has left, or has not joined.
    pub is_out: bool,
    /// The reason why the cluster or the store does not take this member, or why the store does not answer.
    pub trouble: Option<Trouble>,
    /// The records of the cluster as seen last.
    pub view: Option<Arc<View>>,
}

/// A reason why the member is not in, or has no contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The store does not answer.
    Silent(String),
    /// The member is refused.
    Refused(Refusal),
}

enum Command {
    Stopped(String, u64),
    Drain(bool),
    Leave,
}

/// The way to a member that runs.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
}

impl Handle {
    /// The state, and its changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// A server that is to be given away in this epoch does not run.
    pub async fn stopped(&self, server: &str, epoch: u64) {
        let _ = self.commands.send(Command::Stopped(server.to_owned(), epoch)).await;
    }

    /// Gives all servers away, or takes part again.
    pub async fn drain(&self, draining: bool) {
        let _ = self.commands.send(Command::Drain(draining)).await;
    }

    /// Gives all servers away and leaves.
    pub async fn leave(&self) {
        let _ = self.commands.send(Command::Leave).await;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Driver<S> {
    store: S,
    member: Member,
    commands: mpsc::Receiver<Command>,
    state: watch::Sender<State>,
}

impl<S: Store> Driver<S> {
    /// A driver, and the way to it.
    pub fn new(store: S, member: Member) -> (Driver<S>, Handle) {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (state, watched) = watch::channel(State { is_out: true, ..State::default() });
        (Driver { store, member, commands: received, state }, Handle { commands, state: watched })
    }

    /// Runs until every [`Handle`] is dropped.
    pub async fn run(mut self) {
        let mut not_before = now();
        loop {
            let wait = self.member.due(now()).max(not_before).saturating_sub(now());
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Stopped(server, epoch)) => self.member.stopped(&server, epoch),
                    Some(Command::Drain(draining)) => self.member.drain(draining),
                    Some(Command::Leave) => self.member.leave(),
                    None => return,
                },
                () = tokio::time::sleep(wait) => {
                    let transaction = self.member.next(now());
                    let answer = self.store.transact(&transaction).await;
                    if !self.answered(answer) {
                        not_before = now() + REFUSED;
                    }
                }
            }
            self.publish();
        }
    }

    /// Takes an answer. False if there was none that is of use.
    fn answered(&mut self, answer: Result<Committed, StoreError>) -> bool {
        let silent = match &answer {
            Err(StoreError::Unknown(text)) => Some(Trouble::Silent(text.clone())),
            _ => None,
        };
        let refused = self.member.answered(now(), answer).err().map(Trouble::Refused);
        let trouble = silent.or(refused);
        let is_well = trouble.is_none();
        self.state.send_if_modified(|state| std::mem::replace(&mut state.trouble, trouble) != state.trouble);
        is_well
    }

    fn publish(&mut self) {
        let orders = self.member.orders(now());
        let is_out = self.member.is_out();
        self.state.send_if_modified(|state| {
            let is_new = self.member.view().is_some_and(|view| state.view.as_deref() != Some(view));
            if is_new {
                state.view = self.member.view().cloned().map(Arc::new);
            }
            let changed = is_new || state.orders != orders || state.is_out != is_out;
            (state.orders, state.is_out) = (orders, is_out);
            changed
        });
    }
}
