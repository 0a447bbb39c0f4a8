//! Which member should run which virtual server.
//!
//! Each member computes this from what it sees in the store, and takes what falls to it. Two members that see
//! different states may disagree for a while; the store decides then ([`crate::member`]).
//!
//! - A server stays where it is as long as its holder lives, does not drain, and has at most one more than
//!   any other member.
//! - A server without a holder goes to the member with the fewest. Among those, rendezvous hashing decides,
//!   so that the servers of a dead member spread over all others.

use std::collections::BTreeMap;

/// A member that may run servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'v> {
    /// Its name.
    pub name: &'v str,
    /// It may get servers that another member has.
    pub settled: bool,
}

/// The member for each server. `holders` are the servers in order, each with the living member that has it.
/// Only `candidates` get servers.
pub fn assign<'v>(
    candidates: &[Candidate<'v>],
    holders: &BTreeMap<&'v str, Option<&'v str>>,
) -> BTreeMap<&'v str, &'v str> {
    let mut assigned = BTreeMap::new();
    if candidates.is_empty() {
        return assigned;
    }
    let mut counts: BTreeMap<&str, usize> = candidates.iter().map(|of| (of.name, 0)).collect();
    let mut homeless = Vec::new();
    for (server, holder) in holders {
        match holder.and_then(|holder| counts.get_mut(holder).map(|count| (holder, count))) {
            Some((holder, count)) => {
                *count += 1;
                assigned.insert(*server, holder);
            }
            None => homeless.push(*server),
        }
    }
    for server in homeless {
        let fewest = candidates.iter().map(|of| counts[of.name]).min().unwrap_or(0);
        let equal = candidates.iter().filter(|of| counts[of.name] == fewest);
        if let Some(best) = equal.max_by_key(|of| (score(of.name, server), of.name)) {
            assigned.insert(server, best.name);
            *counts.entry(best.name).or_default() += 1;
        }
    }
    // A difference of one is left alone: a move costs clients a recovery.
    while let Some((&most, &many)) = counts.iter().max_by_key(|(name, count)| (**count, **name)) {
        let settled = candidates.iter().filter(|of| of.settled);
        let Some(least) = settled.min_by_key(|of| (counts[of.name], of.name)).map(|of| of.name) else {
            break;
        };
        if many < counts[least] + 2 {
            break;
        }
        let of_most = assigned.iter().filter(|(_, member)| **member == most).map(|(server, _)| *server);
        let Some(server) = of_most.max_by_key(|server| (score(least, server), *server)) else { break };
        assigned.insert(server, least);
        for (name, by) in [(most, -1), (least, 1)] {
            counts.entry(name).and_modify(|count| *count = count.saturating_add_signed(by));
        }
    }
    assigned
}

/// The server of something that none was chosen for, by rendezvous hashing. None if there are no servers.
pub fn home<'v>(of: &str, servers: &'v [String]) -> Option<&'v str> {
    servers.iter().map(String::as_str).max_by_key(|server| (score(server, of), *server))
}

/// The weight of a member for a server (rendezvous hashing, Thaler and Ravishankar 1996): FNV-1a of both,
/// with the last step of SplitMix64, because FNV alone mixes the last bytes badly.
fn score(member: &str, server: &str) -> u64 {
    let bytes = member.bytes().chain([0]).chain(server.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVERS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];

    fn candidates<'v>(names: &[&'v str]) -> Vec<Candidate<'v>> {
        names.iter().map(|&name| Candidate { name, settled: true }).collect()
    }

    fn counts<'v>(assigned: &BTreeMap<&'v str, &'v str>) -> BTreeMap<&'v str, usize> {
        let mut counts = BTreeMap::new();
        assigned.values().for_each(|member| *counts.entry(*member).or_default() += 1);
        counts
    }

    fn held<'v>(assigned: &BTreeMap<&'v str, &'v str>, dead: &str) -> BTreeMap<&'v str, Option<&'v str>> {
        assigned
            .iter()
            .map(|(server, member)| (*server, Some(*member).filter(|member| *member != dead)))
            .collect()
    }

    #[test]
    fn servers_spread_and_stay() {
        let none: BTreeMap<_, _> = SERVERS.iter().map(|&server| (server, None)).collect();
        let three = candidates(&["a", "b", "c"]);
        let first = assign(&three, &none);
        assert_eq!(counts(&first), BTreeMap::from([("a", 2), ("b", 2), ("c", 2)]));
        assert_eq!(assign(&three, &held(&first, "")), first, "nothing moves by itself");

        // Both others take one server of a dead member, and keep their own.
        let two = candidates(&["a", "c"]);
        let after = assign(&two, &held(&first, "b"));
        assert_eq!(counts(&after), BTreeMap::from([("a", 3), ("c", 3)]));
        assert!(first.iter().all(|(server, member)| *member == "b" || after[server] == *member));

        // The member that comes back gets servers when it is settled, and no more move than must.
        let mut three = candidates(&["a", "b", "c"]);
        three[1].settled = false;
        assert_eq!(assign(&three, &held(&after, "")), after);
        three[1].settled = true;
        let back = assign(&three, &held(&after, ""));
        assert_eq!(counts(&back), BTreeMap::from([("a", 2), ("b", 2), ("c", 2)]));
        assert_eq!(back.iter().filter(|(server, member)| after[*server] != **member).count(), 2);
    }

    #[test]
    fn one_server_is_moved_by_nobody_but_a_drain() {
        let held = BTreeMap::from([("s0", Some("a"))]);
        assert_eq!(assign(&candidates(&["a", "b"]), &held)["s0"], "a");
        assert_eq!(assign(&candidates(&["b"]), &held)["s0"], "b", "the holder is no candidate");
        assert!(assign(&[], &held).is_empty());
    }

    #[test]
    fn many_servers_of_a_dead_member_spread_over_the_others() {
        let names: Vec<String> = (0..100).map(|number| format!("member-{number}")).collect();
        let servers: Vec<String> = (0..1000).map(|number| format!("10.0.{number}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let none: BTreeMap<_, _> = servers.iter().map(|server| (server.as_str(), None)).collect();
        let first = assign(&candidates(&all), &none);
        assert!(counts(&first).values().all(|count| *count == 10));
        let after = assign(&candidates(&all[1..]), &held(&first, all[0]));
        let moved = first.iter().filter(|(server, member)| after[*server] != **member).count();
        assert_eq!(moved, 10);
        assert!(counts(&after).values().all(|count| (10..=11).contains(count)));
    }
}
