//! The server: the arbiter's state machine as its shell uses it. The file system below grants a lease with
//! every open.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use arbiter::Options;
use arbiter::leases::{Effect, Leases, Renewal, Termed, Terms, Use, Wanted};
use arbiter::shares::Others;
use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId, LeaseKind, Recovery, Share, Want};

use super::faults::Faults;
use super::network::{Answer, Question};

pub(super) struct Server {
    options: Options,
    leases: Leases,
    recovery: Recovery,
    /// Survives crashes, like the answers to non-idempotent calls.
    values: Vec<u64>,
    exist: Vec<bool>,
    answered: HashMap<(usize, u64), Answer>,
    below: u64,
    recovers: bool,
    /// When a call that is not a push was first served in this incarnation.
    pub(super) served_first: Option<Instant>,
    /// Leases being recalled, by id: holder and file.
    pub(super) evicting: BTreeMap<LeaseId, (usize, usize)>,
    holders: HashMap<LeaseId, (usize, usize)>,
}

pub(super) fn handle(file: usize) -> Handle {
    Handle::new(&[file as u8; 32]).expect("32 bytes fit")
}

impl Server {
    pub(super) fn new(faults: &Faults) -> Server {
        let terms = Terms {
            clock_skew: Duration::from_millis(faults.clock_skew_ms),
            write_slack: Duration::from_millis(faults.write_slack_ms),
            leases_max: faults.records,
            ..Terms::default()
        };
        let options = Options { terms, quiet: Duration::from_secs(faults.quiet_s), ..Options::default() };
        Server {
            leases: Leases::new(&options),
            options,
            recovery: Recovery::default(),
            values: vec![0; faults.all_files()],
            exist: (0..faults.all_files()).map(|file| file < faults.files).collect(),
            answered: HashMap::new(),
            below: 1 << 40,
            recovers: faults.recovers,
            served_first: None,
            evicting: BTreeMap::new(),
            holders: HashMap::new(),
        }
    }

    /// Loses everything in memory.
    pub(super) fn crash(&mut self, now: Instant) {
        let terms = self.options.terms;
        self.leases = Leases::new(&self.options);
        if self.recovers {
            self.recovery = Recovery::begin(now, terms.longest + terms.clock_skew, terms.write_slack);
        }
        self.served_first = None;
        self.evicting.clear();
        self.holders.clear();
    }

    pub(super) fn value(&self, file: usize) -> u64 {
        self.values[file]
    }

    pub(super) fn exists(&self, file: usize) -> bool {
        self.exist[file]
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.leases.expire(now);
        self.settle(now);
    }

    /// When the current recovery ends at the earliest.
    pub(super) fn recovers_until(&self) -> Option<Instant> {
        self.recovery.ends()
    }

    pub(super) fn answer(&mut self, now: Instant, client: usize, xid: u64, question: Question) -> Answer {
        let once = !matches!(question, Question::Read { .. } | Question::Getlease { .. });
        if let Some(answer) = self.answered.get(&(client, xid)).filter(|_| once) {
            return *answer;
        }
        let answer = self.carry_out(now, client, question);
        self.settle(now);
        // Keep NQNFS_TRYLATER too. Its client repeats the call with another xid, and a copy of this call must
        // not be executed later.
        if once {
            self.answered.insert((client, xid), answer);
        }
        answer
    }

    fn carry_out(&mut self, now: Instant, client: usize, question: Question) -> Answer {
        let recovering = self.recovery.is_on(now);
        match question {
            Question::Vacated { .. } | Question::Everything => {
                let all = question == Question::Everything;
                let mine = |of: &(usize, usize)| of.0 == client && (all || Some(of.1) == question.file());
                let ids: Vec<LeaseId> =
                    self.holders.iter().filter(|(_, of)| mine(of)).map(|(id, _)| *id).collect();
                for id in ids {
                    self.holders.remove(&id);
                    self.evicting.remove(&id);
                    self.leases.returned(now, id);
                }
                Answer::Done { value: 0, granted: None }
            }
            // Readers from before the crash may still rely on their leases.
            Question::Write { through: true, .. } if recovering => Answer::Trylater,
            Question::Write { file, value, .. } => {
                if recovering {
                    self.recovery.wrote(now);
                }
                if !self.leases.clear(now, &handle(file), Some(holder(client)), Use::Change) {
                    return Answer::Trylater;
                }
                self.leases.begin_change(&handle(file));
                self.values[file] = value;
                self.leases.end_change(now, &handle(file));
                Answer::Done { value, granted: None }
            }
            _ if recovering => Answer::Trylater,
            Question::Read { file, seconds: 0 } => {
                self.served_first.get_or_insert(now);
                if !self.leases.clear(now, &handle(file), Some(holder(client)), Use::Read) {
                    return Answer::Trylater;
                }
                Answer::Done { value: self.values[file], granted: None }
            }
            Question::Create { file, .. } if self.exist[file] => {
                Answer::Done { value: self.values[file], granted: None }
            }
            Question::Create { file, value, kind, seconds } => {
                self.exist[file] = true;
                self.leases.begin_change(&handle(file));
                self.values[file] = value;
                self.leases.end_change(now, &handle(file));
                match self.with_lease(now, client, (file, kind, seconds)) {
                    Answer::Trylater => Answer::Done { value, granted: None },
                    answer @ Answer::Done { .. } => answer,
                }
            }
            Question::Getlease { file, kind, seconds } => self.with_lease(now, client, (file, kind, seconds)),
            Question::Read { file, seconds } => {
                self.with_lease(now, client, (file, LeaseKind::Read, seconds))
            }
        }
    }

    fn with_lease(&mut self, now: Instant, client: usize, asked: (usize, LeaseKind, u32)) -> Answer {
        let (file, kind, seconds) = asked;
        self.served_first.get_or_insert(now);
        let granted = match self.lease(now, client, asked) {
            Ok(lease) => lease.map(|lease| {
                self.holders.insert(lease.id, (client, file));
                let left = lease.until.map_or(seconds.into(), |until| until.duration_since(now).as_secs());
                (lease.kind.max(kind), left as u32)
            }),
            Err(()) => return Answer::Trylater,
        };
        if !self.leases.clear(now, &handle(file), Some(holder(client)), Use::Read) {
            return Answer::Trylater;
        }
        Answer::Done { value: self.values[file], granted }
    }

    fn lease(
        &mut self,
        now: Instant,
        client: usize,
        asked: (usize, LeaseKind, u32),
    ) -> Result<Option<Lease>, ()> {
        let (file, kind, seconds) = asked;
        let (of, holder, term) = (handle(file), holder(client), Duration::from_secs(seconds.into()));
        let termed = Termed { holder, kind, term, others: Others::default() };
        match self.leases.renew(now, &of, &termed) {
            Renewal::Held(lease) => return Ok(Some(lease)),
            Renewal::NonCaching | Renewal::Full(_) => return Ok(None),
            Renewal::Open => {}
        }
        let flight = self.leases.begin_open();
        self.below += 1;
        let under = Lease {
            id: LeaseId(self.below),
            kind: LeaseKind::Write,
            until: None,
            change: 1,
            space_limit: Lease::NO_SPACE_LIMIT,
        };
        self.leases.land(&of, Some(under));
        self.leases.end_open(flight);
        let write = kind == LeaseKind::Write;
        let usage = if write { Use::Change } else { Use::Read };
        if !self.leases.clear(now, &of, Some(holder), usage) {
            return Err(());
        }
        let access = if write { Share::WRITE } else { Share::READ };
        let (want, others) = (Want::Any, Others::default());
        let (holder, directory, term) = (Some(holder), false, Some(term));
        let wanted = Wanted { holder, access, want, others, change: 1, directory, term };
        let lease = self.leases.grant(now, &of, &wanted);
        self.leases.closed(now, &of);
        Ok(lease)
    }

    fn settle(&mut self, now: Instant) {
        loop {
            let effects = self.leases.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Recall(recall) => {
                        if let Some(of) = self.holders.get(&recall.id) {
                            self.evicting.insert(recall.id, *of);
                        }
                    }
                    Effect::Gone(id, of) => {
                        self.evicting.remove(&id);
                        self.holders.remove(&id);
                        self.leases.closed(now, &of);
                    }
                    Effect::GiveBack(id) => self.leases.gave_back(id),
                    Effect::Revoked(..) | Effect::RecallAny(..) => unreachable!("leases with terms alone"),
                }
            }
        }
    }
}

fn holder(client: usize) -> HolderId {
    HolderId(client as u64)
}
