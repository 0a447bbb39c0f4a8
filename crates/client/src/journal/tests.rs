//! Tests of the journal against a map, truncated at any byte, and damaged at any byte.

use proptest::prelude::*;

use super::*;

fn key(prefix: u8, rest: u8) -> Vec<u8> {
    vec![prefix, 0, rest]
}

fn one(key: Vec<u8>, value: &[u8]) -> Entries {
    Entries::from([(key, value.to_vec())])
}

#[test]
fn a_torn_entry_costs_itself_alone_and_damage_costs_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    assert_eq!(read(&path), Ok(None));
    let mut journal = Journal::begin(&path, &Entries::new()).unwrap();
    journal.put(&key(1, 1), b"first");
    journal.flush().unwrap();
    let complete = std::fs::read(&path).unwrap();
    journal.put(&key(1, 2), b"second");
    journal.flush().unwrap();
    let both = std::fs::read(&path).unwrap();
    for cut in complete.len()..both.len() {
        let contents = parse(&both[..cut]).unwrap();
        assert_eq!(contents.entries, one(key(1, 1), b"first"), "cut at {cut}");
    }
    for at in 0..complete.len() {
        let mut damaged = both.clone();
        damaged[at] ^= 0x10;
        assert!(parse(&damaged).is_err(), "byte {at} of an entry that counts");
    }
}

#[test]
fn the_file_does_not_grow_with_the_past() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut journal = Journal::begin(&path, &Entries::new()).unwrap();
    journal.put(&key(9, 9), b"stays");
    for turn in 0..60_000u32 {
        journal.sync(&[1], one(key(1, 1), &[turn as u8; 100]));
        journal.sync(&[1], Entries::new());
        journal.flush().unwrap();
    }
    let bytes = std::fs::metadata(&path).unwrap().len() as usize;
    assert!(bytes < 3 * SLACK_BYTES, "{bytes} bytes");
    assert_eq!(read(&path).unwrap().unwrap().entries, one(key(9, 9), b"stays"));
}

#[test]
fn a_file_that_is_not_ours_is_refused() {
    assert!(parse(b"").is_err());
    assert!(parse(b"something else entirely").is_err());
    assert_eq!(parse(MAGIC), Ok(Contents::default()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_next_life_reads_what_the_last_one_kept(
        steps in proptest::collection::vec((0u8..3, 0u8..4, 0u8..5, 0usize..40), 0..60),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::begin(&path, &Entries::new()).unwrap();
        let mut model = Entries::new();
        for (what, prefix, rest, length) in steps {
            match what {
                0 => {
                    journal.put(&key(prefix, rest), &vec![rest; length]);
                    model.insert(key(prefix, rest), vec![rest; length]);
                }
                1 => {
                    let wanted = one(key(prefix, rest), &vec![7; length]);
                    model.retain(|key, _| key[0] != prefix);
                    model.extend(wanted.clone());
                    journal.sync(&[prefix], wanted);
                }
                _ => {
                    let entries = read(&path).unwrap().unwrap().entries;
                    journal = Journal::begin(&path, &entries).unwrap();
                }
            }
            journal.flush().unwrap();
            prop_assert_eq!(&read(&path).unwrap().unwrap().entries, &model);
            let live: usize = model.iter().map(|(key, value)| size(key, value.len())).sum();
            prop_assert_eq!(journal.live_bytes, live);
        }
    }

    #[test]
    fn no_file_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut file = MAGIC.to_vec();
        file.extend(bytes);
        let _ = parse(&file);
    }
}
