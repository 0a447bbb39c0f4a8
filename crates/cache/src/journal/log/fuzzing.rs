//! Any entries, read as the journal of an earlier process.

use std::collections::HashSet;

use bytes::Bytes;

use super::header::HEADER_BYTES;
use super::reading::{Contents, join, replace};
use crate::journal::entry::{self, FRAME_BYTES, LIVE_AT};

/// Bytes of a body that the input has for one entry, at most.
const BODY_BYTES_MAX: usize = 255;

/// Reads any entries in two segments. The first byte of the input says whether the machine has started since.
/// Each entry is a length, a byte that says whether it is live, and its body. Frames and checksums are added.
///
/// # Panics
/// If a file comes back twice, or an entry differs from what its encoding says.
pub fn read_any(input: &[u8]) {
    let Some((rebooted, mut rest)) = input.split_first() else { return };
    let mut segments = [vec![0; HEADER_BYTES as usize], vec![0; HEADER_BYTES as usize]];
    while let [length, live, more @ ..] = rest {
        let length = usize::from(*length).min(BODY_BYTES_MAX).min(more.len());
        let (body, after) = more.split_at(length);
        let segment = &mut segments[usize::from(live & 2 != 0)];
        let frame = segment.len();
        segment.extend_from_slice(&(body.len() as u32).to_le_bytes());
        segment.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
        segment.push(live & 1);
        segment.extend_from_slice(body);
        assert!(
            segment.len() == frame + FRAME_BYTES + body.len()
                && segment[frame + LIVE_AT as usize] == live & 1
        );
        rest = after;
    }
    let mut contents = Contents::default();
    for (number, segment) in (1..).zip(segments) {
        let length = segment.len() as u64;
        let (bytes, _) = contents.read(number, &Bytes::from(segment), rebooted & 1 == 1);
        assert!((HEADER_BYTES..=length).contains(&bytes));
    }
    contents.drop_over();
    let (files, over) = replace(contents.files, &contents.complete);
    assert!(over.iter().all(|over| !files.contains_key(&over.number())));
    let files = join(files);
    let handles: HashSet<_> = files.iter().map(|file| file.journaled.begin().handle).collect();
    assert_eq!(handles.len(), files.len());
    for file in &files {
        let _ = file.cut();
        for of_it in &file.entries {
            let (frame, data) = entry::encode(1, of_it);
            let read = entry::decode(&[&frame, data].concat().into());
            assert!(read.is_ok_and(|read| read.entry.entry == *of_it));
        }
    }
}
