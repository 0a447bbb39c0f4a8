//! Replies to COMMITs that come late.

use super::*;

/// 2,000 bytes that the origin has in its memory, and the COMMIT of them.
fn committing(writes: &mut Writes) -> u64 {
    writes.write(0, &[b'o'; 2000], &user(), now());
    writes.demand();
    while let Some(write) = writes.next(8) {
        writes.answered(write.ticket, taken(&write));
    }
    assert_eq!(writes.unstable_bytes(), 2000);
    writes.begin_commit().unwrap().number
}

#[test]
fn a_refused_commit_puts_off_its_bytes_once() {
    let mut writes = Writes::new(1000, 0, Version::default());
    let commit = committing(&mut writes);
    assert!(writes.put_off_commit(commit) && !writes.put_off_commit(commit));
    assert_eq!((writes.unstable_bytes(), writes.bytes()), (0, 2000));
    // Another one is on its way when the caller looks again.
    while let Some(write) = writes.next(8) {
        writes.answered(write.ticket, taken(&write));
    }
    let other = writes.begin_commit().unwrap().number;
    writes.end_commit(commit, Err(Status::NoSpc));
    assert_eq!((writes.unstable_bytes(), writes.take_error()), (2000, None));
    writes.end_commit(other, Ok([0; 8]));
    assert!(writes.is_clean());
}

#[test]
fn a_refused_commit_puts_off_nothing_that_is_newer() {
    let mut writes = Writes::new(1000, 0, Version::default());
    let commit = committing(&mut writes);
    writes.write(0, &[b'n'; 2000], &user(), now());
    assert!(!writes.put_off_commit(commit));
    writes.end_commit(commit, Err(Status::NoSpc));
    assert_eq!((writes.take_error(), writes.bytes()), (Some(Status::NoSpc), 2000));
}

#[test]
fn a_commit_of_bytes_that_were_put_aside_says_nothing_of_later_ones() {
    let mut writes = Writes::new(1000, 0, Version::default());
    let commit = committing(&mut writes);
    writes.abandon(Status::Io);
    assert_eq!(writes.take_error(), Some(Status::Io));
    let later = committing(&mut writes);
    assert!(!writes.is_committing(commit) && !writes.put_off_commit(commit));
    writes.end_commit(commit, Err(Status::NoSpc));
    assert_eq!((writes.take_error(), writes.unstable_bytes()), (None, 2000));
    writes.end_commit(later, Ok([0; 8]));
    assert!(writes.is_clean());
}
