//! A mount that fetches ahead of readers who go through a tree, while another mount changes the tree. An open
//! shows what the last writer closed, whatever was guessed.
//!
//! Promise: guesses

use std::fs;
use std::path::Path;

use crate::setting::{Setting, VERSIONS, may_mount};

const DIRECTORIES: usize = 8;
const FILES: usize = 8;

/// The files of a directory, with their contents, in the order of the listing.
fn read_all(directory: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            all.extend(
                read_all(&entry.path()).into_iter().map(|(file, text)| (format!("{name}/{file}"), text)),
            );
        } else {
            all.push((name, fs::read_to_string(entry.path()).unwrap()));
        }
    }
    all
}

#[test]
fn a_reader_that_is_fetched_ahead_of_sees_what_others_have_closed() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        for n in 0..DIRECTORIES {
            let directory = setting.there(format!("d{n}"));
            fs::create_dir(&directory).unwrap();
            (0..FILES).for_each(|file| fs::write(directory.join(format!("f{file}")), "0").unwrap());
        }
        setting.mount("a", &format!("vers={version},prefetch=64M"));
        setting.mount("b", &format!("vers={version}"));
        for round in 0..6 {
            let expected = round.to_string();
            let all = read_all(&setting.at("a", ""));
            assert_eq!(all.len(), DIRECTORIES * FILES, "{version}");
            let wrong: Vec<_> = all.iter().filter(|(_, text)| *text != expected).collect();
            assert!(wrong.is_empty(), "{version}, round {round}: {wrong:?}");
            for n in 0..DIRECTORIES {
                for file in 0..FILES {
                    let at = setting.at("b", format!("d{n}/f{file}"));
                    fs::write(at, (round + 1).to_string()).unwrap();
                }
            }
        }
        let cache = &setting.status("a")["cache"];
        let (made, used) = (cache["guesses"].as_u64().unwrap(), cache["guesses_used"].as_u64().unwrap());
        assert!(used > 0 && used <= made, "{version}: {used} of {made} guesses were used");
        setting.unmount("a");
        setting.unmount("b");
    }
}
