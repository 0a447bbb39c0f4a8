//! Our own changes of an object, from before they are sent until their outcome is known: see
//! [`crate::history`].

use vfs::{Attributes, Wcc};

use super::ObjectState;
use crate::history::Verdict;
use crate::policy::Policy;
use crate::trust::Sent;

impl ObjectState {
    /// An operation of ours that changes the object, and whose reply will describe the change, is about to be
    /// sent.
    pub fn begin_change(&mut self, policy: &Policy) {
        self.unvouch();
        if !self.own.history.is_under_way() {
            self.own.explained = 0;
            self.own.explained_from = policy.sending();
            self.own.covered = self.is_ours_alone();
        }
        self.own.explained += 1;
        self.own.history.begin();
    }

    /// The operation has ended, and has changed the object or may have. Its reply brought `wcc`.
    pub fn end_change(&mut self, policy: &Policy, wcc: &Wcc, sent: &Sent) {
        learn_clock(policy, wcc);
        if wcc.after.is_none() {
            self.presumed.untold();
        }
        let known = self.known.as_ref().map(|known| known.attributes);
        let verdict = self.own.history.end(known.as_ref(), wcc);
        self.conclude(policy, verdict, sent);
    }

    /// The operation has ended, and has changed nothing.
    pub fn end_failed(&mut self, policy: &Policy, attributes: Option<&Attributes>, sent: &Sent) {
        let known = self.known.as_ref().map(|known| known.attributes);
        let verdict = self.own.history.end_unchanged(known.as_ref(), attributes);
        self.conclude(policy, verdict, sent);
    }

    /// The operation was abandoned: its outcome is unknown.
    pub fn end_lost(&mut self, policy: &Policy) {
        let sent = policy.sending();
        let known = self.known.as_ref().map(|known| known.attributes);
        self.presumed.untold();
        let verdict = self.own.history.end(known.as_ref(), &Wcc::default());
        self.conclude(policy, verdict, &sent);
        self.drop_all(policy);
        self.distrust(policy);
    }

    /// An operation of ours changed a name of the object: RENAME, LINK or REMOVE. The operation moves the
    /// object's ctime, and no reply describes that change. The next attributes will therefore look like a
    /// change by another client; they may also hide one. The cache does not try to tell these cases apart. It
    /// looks the names of the object up again.
    pub fn lose_names(&mut self, policy: &Policy) {
        self.unvouch();
        self.presumed.untold();
        self.own.name_moved = true;
        self.epoch = policy.epoch();
        self.index.changed = true;
        self.own.ours = self.is_ours_alone();
        self.distrust(policy);
    }

    fn conclude(&mut self, policy: &Policy, verdict: Verdict, sent: &Sent) {
        let foreign = matches!(verdict, Verdict::Foreign(_));
        match verdict {
            Verdict::Waiting(None) | Verdict::Explained(None) => {}
            Verdict::Waiting(Some(attributes)) | Verdict::Explained(Some(attributes)) => {
                self.data.clip(attributes.size);
                self.adopt(policy, &attributes, sent);
            }
            // Under a lease, a change that nothing explains is still our own.
            Verdict::Blind(latest) | Verdict::Foreign(latest) if self.own.covered => {
                let alone = self.own.explained == 1;
                if let Some(attributes) = latest.attributes {
                    // Any of several operations may have reported the state, so it counts as requested by the
                    // first of them.
                    let from = if alone { *sent } else { self.own.explained_from };
                    self.data.clip(attributes.size);
                    self.adopt(policy, &attributes, &from);
                }
                // The replies do not tell which of several operations came last.
                if latest.attributes.is_none() || !(alone || latest.certain) {
                    self.own.ours = true;
                    self.distrust(policy);
                }
            }
            // An unexplained change may be another client's. Our own bytes are known, but they do not help:
            // together with the cached bytes they might form a file that never existed.
            Verdict::Blind(latest) | Verdict::Foreign(latest) => {
                self.doubt_writes();
                self.drop_all(policy);
                if foreign {
                    self.note_stranger(policy, latest.attributes.map(|attributes| attributes.ctime));
                }
                if let Some(attributes) = latest.attributes {
                    self.adopt(policy, &attributes, sent);
                }
                self.distrust(policy);
            }
        }
    }
}

/// The ctime of a change that we have just made shows the origin's clock.
fn learn_clock(policy: &Policy, wcc: &Wcc) {
    if let (Some(before), Some(after)) = (wcc.before, wcc.after)
        && before.ctime < after.ctime
    {
        policy.origin.learn_offset(after.ctime, policy.wall());
    }
}
