//! Changes of our own, from before they are sent until it is known what they left: see [`crate::history`].

use vfs::{Attributes, Wcc};

use super::ObjectState;
use crate::history::Verdict;
use crate::policy::Policy;
use crate::trust::Sent;

impl ObjectState {
    /// An operation of ours that changes the object and will say how is about to be sent.
    pub fn begin_change(&mut self, policy: &Policy) {
        self.unvouch();
        if !self.history.is_under_way() {
            self.explained = 0;
            self.explained_from = policy.sending();
            self.covered = self.is_ours_alone();
        }
        self.explained += 1;
        self.history.begin();
    }

    /// It has been done.
    pub fn end_change(&mut self, policy: &Policy, wcc: &Wcc, sent: &Sent) {
        learn_clock(policy, wcc);
        if wcc.after.is_none() {
            self.presumed.untold();
        }
        let known = self.known.as_ref().map(|known| known.attributes);
        let verdict = self.history.end(known.as_ref(), wcc);
        self.conclude(policy, verdict, sent);
    }

    /// It has failed, and changed nothing.
    pub fn end_failed(&mut self, policy: &Policy, attributes: Option<&Attributes>, sent: &Sent) {
        let known = self.known.as_ref().map(|known| known.attributes);
        let verdict = self.history.end_unchanged(known.as_ref(), attributes);
        self.conclude(policy, verdict, sent);
    }

    /// Nobody knows what became of it.
    pub fn end_lost(&mut self, policy: &Policy) {
        let sent = policy.sending();
        let known = self.known.as_ref().map(|known| known.attributes);
        self.presumed.untold();
        let verdict = self.history.end(known.as_ref(), &Wcc::default());
        self.conclude(policy, verdict, &sent);
        self.drop_all(policy);
        self.distrust(policy);
    }

    /// An operation of ours changed a name of it: RENAME, LINK or REMOVE. That moves its ctime, and no reply says from
    /// where to where, so that the next attributes will look like a change by somebody else. They may hide one, too:
    /// nothing is made of knowing better. What names led to it is asked anew.
    pub fn lose_names(&mut self, policy: &Policy) {
        self.unvouch();
        self.presumed.untold();
        self.name_moved = true;
        self.epoch = policy.epoch();
        self.changed = true;
        self.ours = self.is_ours_alone();
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
            // Under a lease, what nothing explains is ours all the same.
            Verdict::Blind(latest) | Verdict::Foreign(latest) if self.covered => {
                let alone = self.explained == 1;
                if let Some(attributes) = latest.attributes {
                    // Which of several operations told it does not matter, if it is as old as any of them.
                    let from = if alone { *sent } else { self.explained_from };
                    self.data.clip(attributes.size);
                    self.adopt(policy, &attributes, &from);
                }
                // Which of several came last, the replies do not tell.
                if latest.attributes.is_none() || !(alone || latest.certain) {
                    self.ours = true;
                    self.distrust(policy);
                }
            }
            // What nothing explains may hide somebody else's change: that our own bytes are known does not help, since
            // together with the others they would be a file that never was.
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

/// A change that just now was ours shows the origin's clock.
fn learn_clock(policy: &Policy, wcc: &Wcc) {
    if let (Some(before), Some(after)) = (wcc.before, wcc.after)
        && before.ctime < after.ctime
    {
        policy.origin.learn_offset(after.ctime, policy.wall());
    }
}
