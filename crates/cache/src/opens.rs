//! The opens of one file: those of the layer above, and the one that the origin has for all of them.
//!
//! The cache is one owner to the origin, so that a second open there is an upgrade of the first, with the union of both
//! shares. The share is narrowed by a downgrade, which may only name a combination that OPENs asked for, or the union
//! of some (RFC 8881, section 18.18.3). With the last local open it is closed, a little later: the next one may be
//! near. While a lease is held, the open that it came with stays. What denies something to others is given up at once
//! when no local open denies it any more, and whatever is kept without need yields to an OPEN of ours that it would
//! stand in the way of.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, HolderId, OpenId, Owner, Principal, Share, StateidBasis};

/// How long a failure to open for reading on behalf of a client without opens keeps us from trying again.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// What is used, and what is denied to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Used.
    pub access: Share,
    /// Denied.
    pub deny: Share,
}

impl Shares {
    /// Nothing at all.
    pub const NONE: Shares = Shares { access: Share::empty(), deny: Share::empty() };

    /// Both.
    #[must_use]
    pub fn union(self, other: Shares) -> Shares {
        Shares { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// Is the other a part of this?
    pub fn contains(self, other: Shares) -> bool {
        self.access.contains(other.access) && self.deny.contains(other.deny)
    }

    /// Does either do what the other denies?
    pub fn conflicts(self, other: Shares) -> bool {
        self.access.intersects(other.deny) || self.deny.intersects(other.access)
    }

    fn weight(self) -> u32 {
        self.access.bits().count_ones() + self.deny.bits().count_ones()
    }
}

impl From<Share> for Shares {
    fn from(access: Share) -> Shares {
        Shares { access, ..Shares::NONE }
    }
}

/// An open of the layer above.
#[derive(Clone, Debug)]
struct Local {
    id: OpenId,
    holder: Option<HolderId>,
    owner: Owner,
    shares: Shares,
    /// Who was let in.
    user: Option<Principal>,
}

/// The open at the origin.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name there.
    pub id: OpenId,
    /// What it has.
    pub shares: Shares,
    /// Who made it.
    pub caller: Caller,
    /// What the OPENs asked for that made it what it is.
    had: Vec<Shares>,
    /// It is from before this process, with what it had then.
    adopted: Option<Shares>,
}

/// What is to be done about the open at the origin.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Look again after this time.
    Wait(Duration),
    /// OPEN with this, so that a downgrade may name it.
    Name(Shares),
    /// OPEN_DOWNGRADE to this.
    Narrow(Upstream, Shares),
    /// CLOSE.
    Close(Upstream),
}

/// What keeps an open at the origin that no local open needs.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// A lease is held.
    pub leased: bool,
    /// The file has no name any more: nobody will open it again.
    pub unlinked: bool,
    /// How long it may be idle.
    pub idle_max: Duration,
    /// Nothing keeps it: an OPEN waits that it stands in the way of.
    pub yields: bool,
    /// What was never asked for alone may be asked for, so as to narrow to it.
    pub may_name: bool,
}

/// The opens of one file.
#[derive(Debug, Default)]
pub struct Opens {
    local: Vec<Local>,
    upstream: Option<Upstream>,
    /// Operations under the upstream open that are under way.
    uses: u32,
    used: Option<Instant>,
    /// When it was last narrowed or closed, in the order of events; `u64::MAX` while that is under way.
    narrowed: u64,
    refused: Option<Instant>,
    /// Somebody will look whether it is to be narrowed or closed.
    pub awaited: bool,
}

impl Opens {
    /// A local open. A second one by the same owner is an upgrade and has the id of the first. True if it is new.
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
        self.local.push(Local { id: fresh, holder, owner: owner.clone(), shares, user: None });
        (fresh, true)
    }

    /// A local open was made by this user.
    pub fn let_in(&mut self, id: OpenId, user: &Principal) {
        if let Some(local) = self.local.iter_mut().find(|local| local.id == id) {
            local.user.get_or_insert_with(|| user.clone());
        }
    }

    /// Was this user let in for reading, by this open?
    pub fn is_read_by(&self, by: StateidBasis, user: &Principal) -> bool {
        let StateidBasis::Open(id) = by else { return false };
        let local = self.local.iter().find(|local| local.id == id);
        local.is_some_and(|local| {
            local.shares.access.contains(Share::READ) && local.user.as_ref() == Some(user)
        })
    }

    /// A local open gives up part of its share. False if that is not a part of it.
    pub fn downgrade(&mut self, id: OpenId, shares: Shares) -> bool {
        let local = self.local.iter_mut().find(|local| local.id == id);
        local.filter(|local| local.shares.contains(shares)).map(|local| local.shares = shares).is_some()
    }

    /// A local open ends. False if it is none.
    pub fn close(&mut self, id: OpenId) -> bool {
        let before = self.local.len();
        self.local.retain(|local| local.id != id);
        self.touch();
        self.local.len() < before
    }

    /// Is there any local open?
    pub fn is_local(&self) -> bool {
        !self.local.is_empty()
    }

    /// May somebody write the file through another local open than this?
    pub fn is_written_besides(&self, id: OpenId) -> bool {
        self.local.iter().any(|local| local.id != id && local.shares.access.contains(Share::WRITE))
    }

    /// May somebody write the file through a local open?
    pub fn is_written(&self) -> bool {
        self.local.iter().any(|local| local.shares.access.contains(Share::WRITE))
    }

    /// Is there any local open but this?
    pub fn is_open_besides(&self, id: OpenId) -> bool {
        self.local.iter().any(|local| local.id != id)
    }

    /// What a local open has.
    pub fn shares(&self, id: OpenId) -> Option<Shares> {
        self.local.iter().find(|local| local.id == id).map(|local| local.shares)
    }

    /// Does the origin have an open with all of this?
    pub fn covers(&self, shares: Shares) -> bool {
        self.upstream.as_ref().is_some_and(|upstream| upstream.shares.contains(shares))
    }

    /// The open at the origin.
    pub fn upstream(&self) -> Option<&Upstream> {
        self.upstream.as_ref()
    }

    /// Is there any open, here or there?
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.upstream.is_none()
    }

    /// An OPEN that was sent at the event `sent` has been answered. False if it crossed a narrowing or a close: then it
    /// is not known whether the origin still has it.
    pub fn opened(&mut self, id: OpenId, shares: Shares, caller: &Caller, sent: u64) -> bool {
        let crossed = self.narrowed >= sent;
        self.refused = None;
        self.touch();
        match &mut self.upstream {
            Some(upstream) if upstream.id == id => {
                upstream.shares = upstream.shares.union(shares);
                if !upstream.had.contains(&shares) {
                    upstream.had.push(shares);
                }
            }
            _ if crossed => return false,
            _ => {
                let caller = caller.clone();
                self.upstream = Some(Upstream { id, shares, caller, had: vec![shares], adopted: None });
            }
        }
        !crossed
    }

    /// The origin has an open since before this process.
    pub fn adopt(&mut self, id: OpenId, shares: Shares, caller: Caller, had: Vec<Shares>) {
        self.upstream = Some(Upstream { id, shares, caller, had, adopted: Some(shares) });
    }

    /// Has the origin had an open with all of this since before this process?
    pub fn was_open(&self, shares: Shares) -> bool {
        let adopted = |upstream: &Upstream| upstream.adopted.is_some_and(|had| had.contains(shares));
        self.covers(shares) && self.upstream.as_ref().is_some_and(adopted)
    }

    /// The origin no longer knows this open.
    pub fn lose(&mut self, id: OpenId) {
        self.upstream.take_if(|upstream| upstream.id == id);
    }

    /// An OPEN for a client without opens has failed.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// Has one failed lately?
    pub fn is_refused(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// An operation under the open at the origin, if it has this share: until `end_use`, it is neither narrowed nor
    /// closed.
    pub fn begin_use(&mut self, shares: Shares) -> Option<OpenId> {
        let id = self.upstream.as_ref().filter(|upstream| upstream.shares.contains(shares))?.id;
        // One that is being narrowed is not for new uses.
        if self.narrowed == u64::MAX {
            return None;
        }
        self.uses += 1;
        Some(id)
    }

    /// The operation is over.
    pub fn end_use(&mut self) {
        self.uses = self.uses.saturating_sub(1);
        self.touch();
    }

    /// What the local opens need.
    fn needed(&self) -> Shares {
        self.local.iter().fold(Shares::NONE, |sum, local| sum.union(local.shares))
    }

    /// Does what the origin has for us, and no local open needs, stand in the way of an OPEN with these shares? It
    /// counts what one owner has against that owner's next OPEN too (RFC 8881, section 9.7).
    pub fn stands_in_the_way(&self, of: Shares) -> bool {
        let held = self.upstream.as_ref().map_or(Shares::NONE, |upstream| upstream.shares);
        held.conflicts(of) && !self.needed().conflicts(of)
    }

    /// Does it deny what no local open denies?
    pub fn denies_more(&self) -> bool {
        let needed = self.needed().deny;
        self.upstream.as_ref().is_some_and(|upstream| !needed.contains(upstream.shares.deny))
    }

    /// Has it been narrowed or closed since this event, or is that under way?
    pub fn narrowed_since(&self, event: u64) -> bool {
        self.narrowed >= event
    }

    /// What is to be done now. Whoever is told to narrow or close has to do it, and say so with `narrowed`.
    pub fn step(&mut self, keep: Keep) -> Step {
        let (needed, denies_more) = (self.needed(), self.denies_more());
        let Some(upstream) = &self.upstream else { return Step::Nothing };
        let matters = denies_more || keep.yields;
        if keep.leased && !matters {
            return Step::Nothing;
        }
        let target = if self.local.is_empty() { Shares::NONE } else { upstream.narrowest(needed) };
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

    /// It has been narrowed to this, or closed if `None`, by this event.
    pub fn narrowed(&mut self, id: OpenId, to: Option<Shares>, event: u64) {
        self.narrowed = event;
        let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.id == id) else { return };
        match to {
            None => self.upstream = None,
            Some(shares) => {
                upstream.shares = shares;
                upstream.had.retain(|had| shares.contains(*had));
            }
        }
    }

    fn touch(&mut self) {
        self.used = Some(Instant::now());
    }
}

impl Upstream {
    /// The narrowest combination that OPENs have named and that holds what is needed.
    fn narrowest(&self, needed: Shares) -> Shares {
        let mut unions = vec![Shares::NONE];
        for had in &self.had {
            for union in unions.clone() {
                let union = union.union(*had);
                if !unions.contains(&union) {
                    unions.push(union);
                }
            }
        }
        let fits = unions.into_iter().filter(|union| union.contains(needed));
        fits.min_by_key(|union| union.weight()).unwrap_or(self.shares)
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
        /// Whatever happens, the origin's open has what the local ones need, and each downgrade is a union of OPENs.
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
