//! The opens of one file: those of the layer above, and the one open that the origin has for all of them.
//!
//! To the origin, the cache is one open-owner. A second OPEN there is an upgrade of the first, with the union
//! of both shares. OPEN_DOWNGRADE narrows the share. It may name only a combination that OPENs asked for, or
//! the union of some (RFC 8881, section 18.18.3).
//!
//! The open at the origin is closed a little later than the last local open, because the next one may be
//! near. While a lease is held, the open that it came with stays. A denial that no local open needs any more
//! is given up at once. An open that is kept without need yields to an OPEN of ours that it would conflict
//! with.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Combinations, HolderId, OpenId, Owner, Principal, Share, Shares, StateidBasis};

/// How long not to try again after an OPEN for reading has failed that was sent for a client without opens.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// An open of the layer above.
#[derive(Clone, Debug)]
struct Local {
    id: OpenId,
    holder: Option<HolderId>,
    owner: Owner,
    shares: Shares,
    /// The user that the open was made for.
    user: Option<Principal>,
    /// It was made under a lease, and no OPEN was sent for it.
    untold: bool,
}

/// The open at the origin.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its id at the origin.
    pub id: OpenId,
    /// Its share.
    pub shares: Shares,
    /// The caller that made it.
    pub caller: Caller,
    /// The shares that the OPENs asked for which made it.
    had: Combinations,
    /// Its share at the start of this process, if it is from before.
    adopted: Option<Shares>,
    /// It is in the queue of [`crate::kept_opens`].
    queued: bool,
}

/// The open at the origin of a file without local opens, as it rests.
#[derive(Clone, Debug)]
pub struct RestingOpen {
    id: OpenId,
    shares: Shares,
    principal: Principal,
    had: Combinations,
    adopted: Option<Shares>,
    queued: bool,
}

impl RestingOpen {
    /// Its id at the origin.
    pub fn id(&self) -> OpenId {
        self.id
    }

    /// An open that the origin has had since before this process. The caller enters it in the queue of
    /// [`crate::kept_opens`].
    pub fn adopted(id: OpenId, shares: Shares, principal: Principal, had: Combinations) -> RestingOpen {
        RestingOpen { id, shares, principal, had, adopted: Some(shares), queued: true }
    }
}

/// The next action on the open at the origin.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Look again after this time.
    Wait(Duration),
    /// OPEN with this share, so that a downgrade may name it.
    Name(Shares),
    /// OPEN_DOWNGRADE to this.
    Narrow(Upstream, Shares),
    /// CLOSE.
    Close(Upstream),
}

/// The reasons to keep an open at the origin that no local open needs.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// A lease is held.
    pub leased: bool,
    /// The file has no name any more: no client will open it again.
    pub unlinked: bool,
    /// How long the open may be idle.
    pub idle_max: Duration,
    /// Nothing keeps it: it conflicts with an OPEN that waits.
    pub yields: bool,
    /// A share that no OPEN has asked for alone may be requested, in order to narrow to it.
    pub may_name: bool,
}

/// The opens of one file.
#[derive(Debug, Default)]
pub struct Opens {
    local: Vec<Local>,
    upstream: Option<Upstream>,
    /// Operations in flight that use the open at the origin.
    uses: u32,
    used: Option<Instant>,
    /// The event at which it was last narrowed or closed; `u64::MAX` while that is in flight.
    narrowed: u64,
    refused: Option<Instant>,
    /// Operations of ours in flight before which every open must be told.
    telling: u32,
    /// A task is due to check whether it must be narrowed or closed.
    pub awaited: bool,
}

impl Opens {
    /// Adds a local open. A second one by the same owner is an upgrade and has the id of the first. Returns
    /// the id, and true if the open is new.
    pub fn open(
        &mut self,
        fresh: OpenId,
        holder: Option<HolderId>,
        owner: &Owner,
        shares: Shares,
    ) -> (OpenId, bool) {
        let same = |local: &&mut Local| local.holder == holder && local.owner == *owner;
        if let Some(local) = self.local.iter_mut().find(same) {
            local.shares = local.shares.union(shares);
            return (local.id, false);
        }
        let owner = owner.clone();
        self.local.push(Local { id: fresh, holder, owner, shares, user: None, untold: false });
        (fresh, true)
    }

    /// Records the user that a local open was made for.
    pub fn let_in(&mut self, id: OpenId, user: &Principal) {
        if let Some(local) = self.local.iter_mut().find(|local| local.id == id) {
            local.user.get_or_insert_with(|| user.clone());
        }
    }

    /// May an open with these shares be untold, if a lease permits it? Not while a close is in flight: it
    /// would cross the OPEN that tells of it.
    pub fn may_be_untold(&self, shares: Shares) -> bool {
        shares == Share::READ.into() && self.telling == 0 && !self.is_narrowing()
    }

    /// Is a narrowing or a close of the open at the origin in flight?
    pub fn is_narrowing(&self) -> bool {
        self.narrowed == u64::MAX
    }

    /// This local open was made under a lease, and no OPEN was sent for it.
    pub fn set_untold(&mut self, id: OpenId) {
        self.local.iter_mut().filter(|local| local.id == id).for_each(|local| local.untold = true);
    }

    /// The share that untold opens need, and the user of one of them. `None` if the origin's open has that
    /// share.
    pub fn untold(&self) -> Option<(Shares, Principal)> {
        let untold = self.local.iter().find(|local| local.untold)?;
        let shares = Shares::from(Share::READ);
        let told = self.covers(shares) && !self.is_narrowing();
        (!told).then(|| (shares, untold.user.clone())).and_then(|(shares, user)| Some((shares, user?)))
    }

    /// The origin has refused the OPEN for the untold opens of this user. They go on without one.
    pub fn lose_untold(&mut self, user: &Principal) {
        let mine = self.local.iter_mut().filter(|local| local.user.as_ref() == Some(user));
        mine.for_each(|local| local.untold = false);
    }

    /// From now on, no new open is untold.
    pub fn begin_telling(&mut self) {
        self.telling += 1;
    }

    /// Ends `begin_telling`.
    pub fn end_telling(&mut self) {
        debug_assert!(self.telling > 0, "a telling ends that did not begin");
        self.telling = self.telling.saturating_sub(1);
    }

    /// Was this open made for this user, with read access?
    pub fn is_read_by(&self, by: StateidBasis, user: &Principal) -> bool {
        let StateidBasis::Open(id) = by else { return false };
        let local = self.local.iter().find(|local| local.id == id);
        local.is_some_and(|local| {
            local.shares.access.contains(Share::READ) && local.user.as_ref() == Some(user)
        })
    }

    /// Narrows the share of a local open. False if `shares` is not a part of it.
    pub fn downgrade(&mut self, id: OpenId, shares: Shares) -> bool {
        let local = self.local.iter_mut().find(|local| local.id == id);
        local.filter(|local| local.shares.contains(shares)).map(|local| local.shares = shares).is_some()
    }

    /// Ends a local open. False if there is none with this id.
    pub fn close(&mut self, id: OpenId) -> bool {
        let before = self.local.len();
        self.local.retain(|local| local.id != id);
        self.touch();
        self.local.len() < before
    }

    /// Number of local opens.
    pub fn locals(&self) -> usize {
        self.local.len()
    }

    /// Number of operations in flight that use the open at the origin.
    pub fn uses(&self) -> u32 {
        self.uses
    }

    /// Is there any local open?
    pub fn is_local(&self) -> bool {
        !self.local.is_empty()
    }

    /// Has a local open other than this one write access?
    pub fn is_written_besides(&self, id: OpenId) -> bool {
        self.local.iter().any(|local| local.id != id && local.shares.access.contains(Share::WRITE))
    }

    /// Has a local open write access?
    pub fn is_written(&self) -> bool {
        self.local.iter().any(|local| local.shares.access.contains(Share::WRITE))
    }

    /// Is there a local open other than this one?
    pub fn is_open_besides(&self, id: OpenId) -> bool {
        self.local.iter().any(|local| local.id != id)
    }

    /// The share of a local open.
    pub fn shares(&self, id: OpenId) -> Option<Shares> {
        self.local.iter().find(|local| local.id == id).map(|local| local.shares)
    }

    /// Does the open at the origin contain these shares?
    pub fn covers(&self, shares: Shares) -> bool {
        self.upstream.as_ref().is_some_and(|upstream| upstream.shares.contains(shares))
    }

    /// The open at the origin.
    pub fn upstream(&self) -> Option<&Upstream> {
        self.upstream.as_ref()
    }

    /// Is there neither a local open nor one at the origin?
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.upstream.is_none()
    }

    /// An OPEN that was sent at the event `sent` has been answered. False if it crossed a narrowing or a
    /// close: then it is not known whether the origin still has the open.
    pub fn opened(&mut self, id: OpenId, shares: Shares, caller: &Caller, sent: u64) -> bool {
        let crossed = self.narrowed >= sent;
        self.refused = None;
        self.touch();
        match &mut self.upstream {
            Some(upstream) if upstream.id == id => {
                upstream.shares = upstream.shares.union(shares);
                upstream.had.add(shares);
            }
            _ if crossed => return false,
            _ => {
                let (caller, had) = (caller.clone(), [shares].into_iter().collect());
                self.upstream = Some(Upstream { id, shares, caller, had, adopted: None, queued: false });
            }
        }
        if !crossed && self.covers(Share::READ.into()) {
            self.local.iter_mut().for_each(|local| local.untold = false);
        }
        !crossed
    }

    /// Takes over an open that the origin has had since before this process.
    pub fn adopt(&mut self, id: OpenId, shares: Shares, caller: Caller, had: Combinations) {
        self.upstream = Some(Upstream { id, shares, caller, had, adopted: Some(shares), queued: false });
    }

    /// May the opens rest? No local open must be left, nothing must use the open at the origin, and no task
    /// must be about to change it.
    pub fn may_rest(&self) -> bool {
        let busy = self.uses > 0 || self.awaited || self.is_narrowing();
        self.local.is_empty() && !busy && !self.denies_more()
    }

    /// What must be remembered of opens that rest, and the event at which the open at the origin was last
    /// narrowed or closed.
    pub fn rest(&self) -> (Option<RestingOpen>, u64) {
        let open = self.upstream.as_ref().map(|upstream| RestingOpen {
            id: upstream.id,
            shares: upstream.shares,
            principal: upstream.caller.principal.clone(),
            had: upstream.had,
            adopted: upstream.adopted,
            queued: upstream.queued,
        });
        (open, self.narrowed)
    }

    /// Opens that rested.
    pub fn wake(open: Option<RestingOpen>, narrowed: u64) -> Opens {
        let upstream = open.map(|open| Upstream {
            id: open.id,
            shares: open.shares,
            caller: Caller { principal: open.principal, ..Caller::machine() },
            had: open.had,
            adopted: open.adopted,
            queued: open.queued,
        });
        Opens { upstream, narrowed, ..Opens::default() }
    }

    /// Only a lease keeps the open. Returns its id if it is not in the queue of such opens yet; the caller
    /// enters it.
    pub fn note_kept(&mut self) -> Option<OpenId> {
        let upstream = self.upstream.as_mut().filter(|_| self.local.is_empty())?;
        (!std::mem::replace(&mut upstream.queued, true)).then_some(upstream.id)
    }

    /// This open has left the queue of those that only a lease keeps. Is it still there, and idle?
    pub fn take_kept(&mut self, id: OpenId) -> bool {
        let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.id == id) else {
            return false;
        };
        upstream.queued = false;
        self.local.is_empty() && self.uses == 0
    }

    /// Has the origin had an open that contains these shares since before this process?
    pub fn was_open(&self, shares: Shares) -> bool {
        let adopted = |upstream: &Upstream| upstream.adopted.is_some_and(|had| had.contains(shares));
        self.covers(shares) && self.upstream.as_ref().is_some_and(adopted)
    }

    /// The origin no longer knows this open.
    pub fn lose(&mut self, id: OpenId) {
        self.upstream.take_if(|upstream| upstream.id == id);
    }

    /// An OPEN on behalf of a client without opens has failed.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// Has such an OPEN failed lately?
    pub fn is_refused(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// Begins an operation that uses the open at the origin, if the open has this share. The open is neither
    /// narrowed nor closed until `end_use`.
    pub fn begin_use(&mut self, shares: Shares) -> Option<OpenId> {
        let id = self.upstream.as_ref().filter(|upstream| upstream.shares.contains(shares))?.id;
        // An open that is being narrowed is not for new uses.
        if self.is_narrowing() {
            return None;
        }
        self.uses += 1;
        Some(id)
    }

    /// The operation has ended.
    pub fn end_use(&mut self) {
        debug_assert!(self.uses > 0, "a use of the open ends that did not begin");
        self.uses = self.uses.saturating_sub(1);
        self.touch();
    }

    /// The union of the local opens' shares.
    fn needed(&self) -> Shares {
        self.local.iter().fold(Shares::NONE, |sum, local| sum.union(local.shares))
    }

    /// Would the open at the origin conflict with an OPEN of these shares, only by shares that no local open
    /// needs? The origin checks an open also against the next OPEN of the same owner (RFC 8881, section 9.7).
    pub fn stands_in_the_way(&self, of: Shares) -> bool {
        let held = self.upstream.as_ref().map_or(Shares::NONE, |upstream| upstream.shares);
        held.conflicts(of) && !self.needed().conflicts(of)
    }

    /// Does the open at the origin deny access that no local open denies?
    pub fn denies_more(&self) -> bool {
        let needed = self.needed().deny;
        self.upstream.as_ref().is_some_and(|upstream| !needed.contains(upstream.shares.deny))
    }

    /// Has the open been narrowed or closed since this event, or is that in flight?
    pub fn narrowed_since(&self, event: u64) -> bool {
        self.narrowed >= event
    }

    /// The next action now. If it is to narrow or close, the caller must do so and then call `narrowed`.
    pub fn step(&mut self, keep: Keep) -> Step {
        let (needed, denies_more) = (self.needed(), self.denies_more());
        let Some(upstream) = &self.upstream else { return Step::Nothing };
        let matters = denies_more || keep.yields;
        if keep.leased && !matters {
            return Step::Nothing;
        }
        let target = if self.local.is_empty() {
            Shares::NONE
        } else {
            upstream.had.narrowest(needed).unwrap_or(upstream.shares)
        };
        let unnamed = matters && keep.may_name && !self.local.is_empty() && target != needed;
        if target == upstream.shares && !unnamed {
            return Step::Nothing;
        }
        let idle = self.used.map_or(Duration::MAX, |at| at.elapsed());
        let hurry = keep.unlinked || matters;
        if self.uses > 0 || (idle < keep.idle_max && !hurry) {
            let rest = if hurry { Duration::ZERO } else { keep.idle_max.saturating_sub(idle) };
            return Step::Wait(rest.max(Duration::from_millis(10)));
        }
        if unnamed {
            return Step::Name(needed);
        }
        self.narrowed = u64::MAX;
        if self.local.is_empty() {
            Step::Close(upstream.clone())
        } else {
            Step::Narrow(upstream.clone(), target)
        }
    }

    /// At this event, the open was narrowed to these shares, or closed if `to` is `None`.
    pub fn narrowed(&mut self, id: OpenId, to: Option<Shares>, event: u64) {
        self.narrowed = event;
        let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.id == id) else { return };
        match to {
            None => self.upstream = None,
            Some(shares) => {
                upstream.shares = shares;
                upstream.had.narrow(shares);
            }
        }
    }

    fn touch(&mut self) {
        self.used = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const NOW: Keep =
        Keep { leased: false, unlinked: false, idle_max: Duration::ZERO, yields: false, may_name: false };

    fn owner(n: u8) -> Owner {
        Owner(Bytes::copy_from_slice(&[n]))
    }

    fn shares(access: u8, deny: u8) -> Shares {
        Shares { access: Share::from_bits_truncate(access), deny: Share::from_bits_truncate(deny) }
    }

    #[test]
    fn a_share_is_narrowed_to_what_was_opened_before_only() {
        let mut opens = Opens::default();
        let caller = Caller::machine();
        opens.open(OpenId(1), None, &owner(1), shares(3, 0));
        assert!(opens.opened(OpenId(9), shares(3, 0), &caller, 1));
        opens.open(OpenId(2), None, &owner(2), shares(1, 0));
        opens.close(OpenId(1));
        assert!(matches!(opens.step(NOW), Step::Nothing), "read alone was never asked for");
        opens.open(OpenId(3), None, &owner(3), shares(1, 0));
        assert!(opens.opened(OpenId(9), shares(1, 0), &caller, 2));
        let Step::Narrow(upstream, target) = opens.step(NOW) else { panic!() };
        assert_eq!((upstream.id, target), (OpenId(9), shares(1, 0)));
        assert!(opens.begin_use(shares(1, 0)).is_none(), "it is being narrowed");
        opens.narrowed(OpenId(9), Some(target), 3);
        assert!(!opens.covers(shares(2, 0)) && opens.covers(shares(1, 0)));
        assert!(!opens.opened(OpenId(9), shares(2, 0), &caller, 2), "crossed the downgrade");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_close_is_deferred_and_a_lease_keeps_the_open() {
        let mut opens = Opens::default();
        let second = Duration::from_secs(1);
        opens.open(OpenId(1), None, &owner(1), shares(1, 0));
        opens.opened(OpenId(9), shares(1, 0), &Caller::machine(), 1);
        opens.close(OpenId(1));
        let keep = Keep { idle_max: second, ..NOW };
        assert!(matches!(opens.step(keep), Step::Wait(_)));
        tokio::time::advance(second).await;
        assert!(matches!(opens.step(Keep { leased: true, ..keep }), Step::Nothing));
        opens.begin_use(shares(1, 0)).unwrap();
        assert!(matches!(opens.step(keep), Step::Wait(_)), "in use");
        opens.end_use();
        let unlinked = Keep { unlinked: true, ..keep };
        assert!(matches!(opens.step(unlinked), Step::Close(_)), "at once");
        opens.narrowed(OpenId(9), None, 5);
        assert!(opens.is_empty());
    }

    #[test]
    fn what_is_kept_without_need_yields_and_denials_end_at_once() {
        let mut opens = Opens::default();
        let caller = Caller::machine();
        let keep = Keep { leased: true, idle_max: Duration::from_secs(9), may_name: true, ..NOW };
        opens.open(OpenId(1), None, &owner(1), shares(1, 2));
        opens.opened(OpenId(9), shares(1, 2), &caller, 1);
        opens.open(OpenId(2), None, &owner(2), shares(1, 0));
        assert!(!opens.denies_more() && !opens.stands_in_the_way(shares(2, 0)), "it is needed");
        opens.close(OpenId(1));
        assert!(opens.stands_in_the_way(shares(2, 0)) && !opens.stands_in_the_way(shares(1, 0)));
        let Step::Name(named) = opens.step(keep) else { panic!("reading alone was never asked for") };
        assert_eq!(named, shares(1, 0));
        assert!(matches!(opens.step(Keep { may_name: false, ..keep }), Step::Nothing));
        opens.opened(OpenId(9), named, &caller, 2);
        opens.begin_use(named).unwrap();
        assert!(matches!(opens.step(keep), Step::Wait(_)), "in use");
        opens.end_use();
        assert!(matches!(opens.step(keep), Step::Narrow(_, to) if to == named), "at once");
        opens.narrowed(OpenId(9), Some(named), 3);
        assert!(opens.narrowed_since(3) && !opens.narrowed_since(4));
        opens.close(OpenId(2));
        assert!(matches!(opens.step(keep), Step::Nothing), "the lease keeps it");
        assert!(opens.stands_in_the_way(shares(2, 1)));
        assert!(matches!(opens.step(Keep { yields: true, ..keep }), Step::Close(_)));
    }

    proptest! {
        /// The open at the origin always has the shares that local opens need, and each downgrade is a union
        /// of OPENs.
        #[test]
        fn the_origin_always_has_what_is_needed(steps in prop::collection::vec((0..4u8, 1..4u8, 0..4u8, 0..3u8), 1..60)) {
            let mut opens = Opens::default();
            let mut had: Vec<Shares> = Vec::new();
            let mut event = 1;
            for (who, access, deny, what) in steps {
                event += 1;
                let (id, wanted) = (OpenId(who.into()), shares(access, deny));
                match what {
                    0 | 1 => {
                        if !opens.covers(wanted) {
                            prop_assert!(opens.opened(OpenId(99), wanted, &Caller::machine(), event));
                            had.push(wanted);
                        }
                        opens.open(id, None, &owner(who), wanted);
                    }
                    _ => drop(opens.close(id)),
                }
                event += 1;
                match opens.step(NOW) {
                    Step::Narrow(upstream, to) => {
                        let parts = had.iter().filter(|had| to.contains(**had));
                        prop_assert_eq!(parts.fold(Shares::NONE, |sum, part| sum.union(*part)), to);
                        prop_assert!(upstream.shares.contains(to) && upstream.shares != to);
                        opens.narrowed(upstream.id, Some(to), event);
                        had.retain(|had| to.contains(*had));
                    }
                    Step::Close(upstream) => {
                        prop_assert!(opens.local.is_empty());
                        opens.narrowed(upstream.id, None, event);
                        had.clear();
                    }
                    _ => {}
                }
                for local in &opens.local {
                    prop_assert!(opens.covers(local.shares));
                }
            }
        }
    }
}
