//! Checks whether a history is that of one register. The check is exact, because no two writes have the same
//! value (Gibbons and Korach, *Testing shared memories*, 1997, for the case of known write order by value).
//!
//! All operations on one value are a cluster. If the first end of an operation comes before the last
//! beginning of another, the register must have had that value for the span between. Then the span of another
//! cluster must not overlap it, and no cluster may lie within it that must have taken place completely there.

use std::collections::BTreeMap;
use std::fmt;

/// One operation as its client saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) value: u64,
    pub(super) write: bool,
    pub(super) began: u64,
    /// `u64::MAX` if the client never saw it end.
    pub(super) ended: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cluster {
    value: u64,
    first_end: u64,
    last_begin: u64,
    write_began: Option<u64>,
    reads: usize,
}

/// Returns what is wrong. The value before all writes is 0.
pub(super) fn check(ops: &[Op]) -> Result<(), String> {
    let mut clusters: BTreeMap<u64, Cluster> = BTreeMap::new();
    let none = |value| Cluster { value, first_end: u64::MAX, last_begin: 0, write_began: None, reads: 0 };
    let first = clusters.entry(0).or_insert(none(0));
    (first.first_end, first.write_began) = (0, Some(0));
    for op in ops {
        let cluster = clusters.entry(op.value).or_insert(none(op.value));
        cluster.first_end = cluster.first_end.min(op.ended);
        cluster.last_begin = cluster.last_begin.max(op.began);
        if op.write {
            cluster.write_began = Some(op.began);
        } else {
            cluster.reads += 1;
        }
    }
    for read in ops.iter().filter(|op| !op.write) {
        let began = clusters.get(&read.value).and_then(|cluster| cluster.write_began);
        if began.is_none_or(|began| read.ended < began) {
            return Err(format!("{read:?} is of a value that nobody had written"));
        }
    }
    // A write that never ended and that no client read may not have taken place.
    let real: Vec<Cluster> =
        clusters.into_values().filter(|it| it.first_end < u64::MAX || it.reads > 0).collect();
    let (forward, backward): (Vec<_>, Vec<_>) = real.into_iter().partition(|it| it.first_end < it.last_begin);
    let mut forward = forward;
    forward.sort_by_key(|it| it.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(format!("{} and {} were both there at one time", pair[0], pair[1]));
        }
    }
    for inner in backward {
        let outer =
            forward.iter().find(|it| it.first_end < inner.last_begin && inner.first_end < it.last_begin);
        if let Some(outer) = outer {
            return Err(format!("{inner} took place while {outer} was there"));
        }
    }
    Ok(())
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cluster { value, first_end, last_begin, reads, .. } = self;
        write!(f, "{value} ({reads} reads; first end at {first_end} ms, last beginning at {last_begin} ms)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(value: u64, write: bool, began: u64, ended: u64) -> Op {
        Op { value, write, began, ended }
    }

    #[test]
    fn histories_of_a_register_pass() {
        assert_eq!(
            check(&[op(1, true, 1, 5), op(0, false, 2, 3), op(1, false, 4, 6), op(1, false, 7, 8)]),
            Ok(())
        );
        // Two concurrent writes, in either order.
        assert_eq!(check(&[op(1, true, 1, 9), op(2, true, 1, 9), op(2, false, 10, 11)]), Ok(()));
        assert_eq!(check(&[op(1, true, 1, u64::MAX), op(0, false, 10, 11)]), Ok(()));
    }

    #[test]
    fn others_do_not() {
        assert!(check(&[op(1, true, 1, 2), op(0, false, 3, 4)]).is_err(), "an old value");
        assert!(check(&[op(7, false, 3, 4)]).is_err(), "no value at all");
        let back = [op(1, true, 1, 2), op(2, true, 3, 4), op(2, false, 5, 6), op(1, false, 7, 8)];
        assert!(check(&back).is_err(), "and back");
        assert!(check(&[op(1, false, 1, 2), op(1, true, 3, 4)]).is_err(), "before it was written");
    }
}
