//! The fuzz target, with random and with valid entries.
//!
//! Promise: killed-mounts

use proptest::prelude::*;

use super::{begin, write};
use crate::journal::entry::{self, Begin, Entry, FRAME_BYTES};
use crate::journal::log::fuzzing::read_any;

fn entries() -> impl Strategy<Value = Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let journal = super::journal(directory.path());
    let named = |handle, replaces| {
        let named = begin(&journal, handle).begin().clone();
        Entry::Begin(Box::new(Begin { replaces, ..named }))
    };
    let mut all =
        vec![write(3, 20), Entry::Change(4), Entry::Cut(7), Entry::CutEnd(true), Entry::AttributesEnd];
    all.extend((0..3).map(Entry::Complete));
    for handle in 0..2 {
        all.extend([None, Some(0), Some(1), Some(2)].map(|replaces| named(handle, replaces)));
    }
    let one = (0..4_u64, prop::sample::select(all), 0..4_u8).prop_map(|(file, entry, live)| {
        let (frame, data) = entry::encode(file, &entry);
        let body = [&frame[FRAME_BYTES..], data].concat();
        [&[body.len() as u8, live], &body[..]].concat()
    });
    prop::collection::vec(one, 0..40).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_read(input in prop::collection::vec(any::<u8>(), 0..400)) {
        read_any(&input);
    }

    #[test]
    fn any_entries_are_read(rebooted in any::<u8>(), entries in entries()) {
        read_any(&[&[rebooted][..], &entries].concat());
    }
}
