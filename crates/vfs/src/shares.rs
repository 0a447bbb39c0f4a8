//! Share reservations (RFC 8881, section 9.7), and the shares that OPEN_DOWNGRADE may name (section
//! 18.18.3).
//!
//! Pure values. An open has an access and denies an access to others. A second OPEN of the file by the same
//! owner extends the open to the union of both. OPEN_DOWNGRADE reduces the open, but only to shares that
//! some of its OPENs had together.

use crate::open::Share;

/// The access that an open has, and the access that it denies to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    /// The access of the open.
    pub access: Share,
    /// The access denied to others.
    pub deny: Share,
}

impl Shares {
    /// No access, and nothing denied.
    pub const NONE: Shares = Shares { access: Share::empty(), deny: Share::empty() };

    /// What either of them has.
    #[must_use]
    pub fn union(self, other: Shares) -> Shares {
        Shares { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// What both of them have.
    #[must_use]
    pub fn intersection(self, other: Shares) -> Shares {
        Shares { access: self.access & other.access, deny: self.deny & other.deny }
    }

    /// Is `other` a part of this?
    pub fn contains(self, other: Shares) -> bool {
        self.access.contains(other.access) && self.deny.contains(other.deny)
    }

    /// Has either of them an access that the other denies?
    pub fn conflicts(self, other: Shares) -> bool {
        self.access.intersects(other.deny) || self.deny.intersects(other.access)
    }

    /// The number of accesses and denials.
    fn weight(self) -> u32 {
        self.access.bits().count_ones() + self.deny.bits().count_ones()
    }

    fn index(self) -> u16 {
        u16::from(self.access.bits() | self.deny.bits() << 2)
    }

    fn all() -> impl Iterator<Item = Shares> {
        let share = Share::from_bits_truncate;
        (0..16u8).map(move |index| Shares { access: share(index & 3), deny: share(index >> 2) })
    }
}

impl From<Share> for Shares {
    /// This access, and nothing denied.
    fn from(access: Share) -> Shares {
        Shares { access, ..Shares::NONE }
    }
}

/// The different shares that the OPENs of one open asked for. OPEN_DOWNGRADE may name the union of any of
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Combinations(
    /// A bit for each of the sixteen shares.
    u16,
);

impl Combinations {
    /// An OPEN asked for these shares.
    pub fn add(&mut self, shares: Shares) {
        self.0 |= 1 << shares.index();
    }

    /// The open was downgraded: removes all shares that are not a part of these.
    pub fn narrow(&mut self, to: Shares) {
        *self = self.iter().filter(|shares| to.contains(*shares)).collect();
    }

    /// May OPEN_DOWNGRADE name these shares? They must be the union of at least one of the shares that
    /// OPENs asked for.
    pub fn allows(self, wanted: Shares) -> bool {
        let parts = self.iter().filter(|shares| wanted.contains(*shares));
        parts.reduce(Shares::union) == Some(wanted)
    }

    /// The least shares that contain `needed` and that OPEN_DOWNGRADE may name. [`Shares::NONE`] if that is
    /// needed. `None` if all OPENs together do not contain `needed`.
    ///
    /// There is only one least, provided that `needed` has an access and no OPEN conflicts with another one
    /// of the same open. Servers refuse such an OPEN (RFC 7530, section 9.9).
    pub fn narrowest(self, needed: Shares) -> Option<Shares> {
        let may_be_named = |shares: &Shares| *shares == Shares::NONE || self.allows(*shares);
        let fits = Shares::all().filter(|shares| shares.contains(needed));
        fits.filter(may_be_named).min_by_key(|shares| shares.weight())
    }

    /// The shares that OPENs asked for.
    pub fn iter(self) -> impl Iterator<Item = Shares> {
        Shares::all().filter(move |shares| self.0 & 1 << shares.index() != 0)
    }

    /// The set as a number, for a record: bit `access + 4 * deny` for each of the shares.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set with this number.
    pub fn from_bits(bits: u16) -> Combinations {
        Combinations(bits)
    }
}

impl FromIterator<Shares> for Combinations {
    fn from_iter<I: IntoIterator<Item = Shares>>(all: I) -> Combinations {
        let mut combinations = Combinations::default();
        all.into_iter().for_each(|shares| combinations.add(shares));
        combinations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READ: Share = Share::READ;
    const WRITE: Share = Share::WRITE;
    const NOTHING: Share = Share::empty();

    fn shares(access: Share, deny: Share) -> Shares {
        Shares { access, deny }
    }

    /// The unions of every choice of one or more parts.
    fn unions(parts: &[Shares]) -> Vec<Shares> {
        let choices = 1..1u32 << parts.len();
        let chosen = |choice: u32| {
            let parts = parts.iter().enumerate().filter(move |(at, _)| choice & 1 << at != 0);
            parts.map(|(_, part)| *part).fold(Shares::NONE, Shares::union)
        };
        choices.map(chosen).collect()
    }

    #[test]
    fn an_open_is_downgraded_to_unions_of_its_opens_only() {
        let mut had: Combinations =
            [shares(READ, NOTHING), shares(READ | WRITE, WRITE)].into_iter().collect();
        assert!(had.allows(READ.into()) && had.allows(shares(READ | WRITE, WRITE)));
        assert!(!had.allows(WRITE.into()) && !had.allows((READ | WRITE).into()) && !had.allows(Shares::NONE));
        assert_eq!(had.narrowest(READ.into()), Some(READ.into()));
        assert_eq!(had.narrowest(WRITE.into()), Some(shares(READ | WRITE, WRITE)));
        assert_eq!(had.narrowest(shares(READ, READ)), None);
        assert_eq!(had.narrowest(Shares::NONE), Some(Shares::NONE));
        had.narrow(READ.into());
        assert_eq!(had.iter().collect::<Vec<_>>(), [READ.into()]);
        assert_eq!(Combinations::default().narrowest(READ.into()), None);
    }

    #[test]
    fn shares_conflict_if_one_has_what_the_other_denies() {
        assert!(
            shares(READ, WRITE).conflicts(WRITE.into()) && Shares::from(WRITE).conflicts(shares(READ, WRITE))
        );
        assert!(
            !shares(READ, WRITE).conflicts(READ.into())
                && !Shares::NONE.conflicts(shares(READ, READ | WRITE))
        );
    }

    #[test]
    fn a_record_has_one_bit_for_each_of_the_shares() {
        let had: Combinations = [READ.into(), shares(WRITE, READ | WRITE)].into_iter().collect();
        assert_eq!(had.bits(), 1 << 1 | 1 << 14);
        assert_eq!(Combinations::from_bits(had.bits()), had);
    }

    /// All sets of OPENs of one open that a server grants: none conflicts with another one.
    #[test]
    fn there_is_one_narrowest_for_each_access() {
        let possible: Vec<Shares> = Shares::all().filter(|shares| !shares.access.is_empty()).collect();
        for choice in 1..1u32 << possible.len() {
            let chosen = possible.iter().enumerate().filter(|(at, _)| choice & 1 << at != 0);
            let parts: Vec<Shares> = chosen.map(|(_, shares)| *shares).collect();
            let granted =
                |(at, one): (usize, &Shares)| !parts[at + 1..].iter().any(|other| one.conflicts(*other));
            if !parts.iter().enumerate().all(granted) {
                continue;
            }
            let had: Combinations = parts.iter().copied().collect();
            let named: std::collections::BTreeSet<u16> =
                unions(&parts).into_iter().map(Shares::index).collect();
            for needed in Shares::all().filter(|needed| !needed.access.is_empty()) {
                let named = Shares::all().filter(|shares| named.contains(&shares.index()));
                let fits: Vec<Shares> = named.filter(|shares| shares.contains(needed)).collect();
                let least = fits.iter().map(|shares| shares.weight()).min();
                let narrowest: Vec<Shares> =
                    fits.into_iter().filter(|shares| Some(shares.weight()) == least).collect();
                assert!(narrowest.len() <= 1, "{parts:?} for {needed:?}");
                assert_eq!(had.narrowest(needed), narrowest.first().copied());
            }
        }
    }

    proptest! {
        /// The model keeps each OPEN, and tries every choice of them.
        #[test]
        fn combinations_are_what_the_opens_say(
            steps in prop::collection::vec((any::<bool>(), 0..4u8, 0..4u8), 1..24),
        ) {
            let (mut had, mut parts) = (Combinations::default(), Vec::<Shares>::new());
            for (opens, access, deny) in steps {
                let wanted = shares(Share::from_bits_truncate(access), Share::from_bits_truncate(deny));
                let allowed = unions(&parts).contains(&wanted);
                prop_assert_eq!(had.allows(wanted), allowed);
                if opens && parts.len() < 8 {
                    had.add(wanted);
                    parts.push(wanted);
                } else if allowed {
                    had.narrow(wanted);
                    parts.retain(|part| wanted.contains(*part));
                }
                let complete = parts.iter().copied().fold(Shares::NONE, Shares::union);
                let narrowest = had.narrowest(wanted);
                prop_assert_eq!(narrowest.is_some(), complete.contains(wanted));
                for union in unions(&parts).into_iter().filter(|union| union.contains(wanted)) {
                    prop_assert!(narrowest.is_some_and(|least| union.weight() >= least.weight()));
                }
                prop_assert!(narrowest.is_none_or(|least| least.contains(wanted)));
                prop_assert_eq!(Combinations::from_bits(had.bits()), had);
                prop_assert!(had.iter().all(|shares| parts.contains(&shares)));
                prop_assert!(parts.iter().all(|part| had.iter().any(|shares| shares == *part)));
            }
        }
    }
}
