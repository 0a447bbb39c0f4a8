//! How the origins of a proxy share the disk of its cache.
//!
//! An origin has its share for sure, and uses what others leave of theirs. It gives that back as soon as they
//! grow: the shares are divided again every few seconds, and a cache above its limit evicts.

use std::time::Duration;

/// How often the shares are divided again.
pub const EVERY: Duration = Duration::from_secs(2);

/// An origin may grow by this part of the whole before the next division.
const ROOM: u64 = 16;

/// What one origin has of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its share, in proportion to those of the others.
    pub share: u32,
    /// The bytes that it uses.
    pub used: u64,
}

/// The limit of each origin, in bytes. Together they are at most `all`.
pub fn divide(all: u64, parts: &[Part]) -> Vec<u64> {
    let shares: u64 = parts.iter().map(|part| u64::from(part.share)).sum();
    let of = |bytes: u64, share: u32, shares: u64| {
        u64::try_from(u128::from(bytes) * u128::from(share) / u128::from(shares.max(1))).unwrap_or(bytes)
    };
    let room = all / ROOM;
    // The limit of an origin that does not need its share; none for one that does.
    let modest: Vec<Option<u64>> = parts
        .iter()
        .map(|part| Some(part.used.saturating_add(room)).filter(|limit| *limit < of(all, part.share, shares)))
        .collect();
    let left = all - modest.iter().flatten().sum::<u64>();
    let eager = parts.iter().zip(&modest).filter(|(_, limit)| limit.is_none());
    let eager: u64 = eager.map(|(part, _)| u64::from(part.share)).sum();
    parts
        .iter()
        .zip(&modest)
        .map(|(part, limit)| match limit {
            Some(limit) if eager > 0 => *limit,
            // Nobody needs what is left.
            Some(_) => of(all, part.share, shares),
            None => of(left, part.share, eager),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(parts: &[(u32, u64)]) -> Vec<Part> {
        parts.iter().map(|&(share, used)| Part { share, used }).collect()
    }

    #[test]
    fn an_origin_uses_what_others_leave_and_gives_it_back() {
        assert_eq!(divide(1600, &parts(&[(1, 0), (1, 0)])), [800, 800], "nobody needs anything");
        assert_eq!(divide(1600, &parts(&[(1, 790), (1, 0)])), [1500, 100], "one needs more");
        assert_eq!(divide(1600, &parts(&[(1, 1500), (1, 90)])), [1410, 190], "the other one grows");
        assert_eq!(divide(1600, &parts(&[(1, 1500), (1, 790)])), [800, 800], "both need all");
        assert_eq!(divide(1600, &parts(&[(3, 1600), (1, 1600)])), [1200, 400]);
        assert_eq!(divide(0, &parts(&[(1, 5)])), [0]);
    }

    proptest! {
        #[test]
        fn the_limits_are_within_the_whole_and_no_share_is_taken(
            all in 0_u64..1 << 50,
            of in prop::collection::vec((1_u32..1000, 0_u64..1 << 50), 1..8),
        ) {
            let parts = parts(&of);
            let limits = divide(all, &parts);
            prop_assert!(limits.iter().sum::<u64>() <= all);
            let shares: u64 = parts.iter().map(|part| u64::from(part.share)).sum();
            for (part, limit) in parts.iter().zip(&limits) {
                let share = u128::from(all) * u128::from(part.share) / u128::from(shares);
                let needed = share.min(u128::from(part.used.saturating_add(all / ROOM)));
                prop_assert!(u128::from(*limit) >= needed.saturating_sub(1), "{part:?}: {limit}");
            }
        }
    }
}
