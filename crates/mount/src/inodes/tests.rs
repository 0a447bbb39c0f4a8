//! The table of nodes against a model that counts lookups, and its rules for names and retired nodes.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap as Model;

fn handle(n: u8) -> Handle {
    Handle::new(&[n]).unwrap()
}

fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_secs(60)
}

#[test]
fn names_that_are_believed_are_doubted_once() {
    let inodes = Inodes::new(handle(0));
    let (directory, file) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let at = |parent, text| (parent, name(text));
    inodes.name(&file, at(directory.number, "a"), false, soon());
    inodes.name(&file, at(directory.number, "b"), false, Instant::now());
    inodes.name(&file, at(directory.number + 1, "c"), false, soon());
    inodes.name(&file, at(ROOT, "d"), false, soon());
    assert_eq!(inodes.doubt_names(directory.number), [name("a")]);
    assert!(inodes.doubt_names(directory.number).is_empty());
    inodes.name(&file, at(directory.number, "a"), false, soon());
    assert_eq!(inodes.doubt_names(directory.number), [name("a")], "it was told again");
}

#[test]
fn a_directory_that_was_moved_to_another_one_has_a_name_to_leave() {
    let inodes = Inodes::new(handle(0));
    let (to, moved) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
    let at = |parent, text: &str| (parent, Name::new(text.as_bytes()).unwrap());
    let leaves = || moved.state.lock().directory.moved_from.take();
    inodes.name(&moved, at(ROOT, "a"), true, soon());
    inodes.name(&moved, at(ROOT, "b"), true, soon());
    assert_eq!(leaves(), None, "it stayed in its directory");
    inodes.name(&moved, at(to.number, "b"), true, soon());
    inodes.name(&moved, at(to.number, "b"), true, soon());
    assert_eq!(leaves(), Some(at(ROOT, "b")));
    inodes.name(&moved, at(to.number, "b"), true, soon());
    assert_eq!(leaves(), None);
}

#[test]
fn the_root_is_never_forgotten() {
    let inodes = Inodes::new(handle(0));
    assert!(inodes.forget(ROOT, 1000).is_none() && inodes.get(ROOT).is_some());
    assert_eq!(inodes.remember(&handle(0)).number, ROOT);
}

#[test]
fn a_retired_node_stays_with_those_who_have_it() {
    let inodes = Inodes::new(handle(0));
    let old = inodes.remember(&handle(1));
    inodes.retire(&old);
    let new = inodes.remember(&handle(1));
    assert_ne!(old.number, new.number);
    assert!(Arc::ptr_eq(&old.opens, &new.opens), "they are opens of one file");
    assert_eq!(inodes.get(old.number).unwrap().handle(), handle(1));
    assert!(inodes.forget(old.number, 1).is_some());
    assert_eq!(inodes.find(&handle(1)).unwrap().number, new.number, "forgetting the old leaves the new");
}

#[test]
fn a_node_that_takes_every_open_is_the_one_that_is_there_unless_that_is_in_passthrough() {
    let inodes = Inodes::new(handle(0));
    let there = inodes.remember(&handle(1));
    let (same, retired) = inodes.remember_ordinary(&handle(1));
    assert!(Arc::ptr_eq(&there, &same) && retired.is_none() && same.state.lock().opened.ordinary == 1);
    drop(same);
    assert_eq!(there.state.lock().opened.ordinary, 0);
    assert!(inodes.tell_again(there.number) && inodes.forget(there.number, 2).is_none(), "told three times");
    assert!(inodes.forget(there.number, 1).is_some() && !inodes.tell_again(there.number));
    let (new, retired) = inodes.remember_ordinary(&handle(1));
    assert!(!Arc::ptr_eq(&new, &there) && retired.is_none() && new.state.lock().opened.ordinary == 1);
    assert_eq!(new.number, there.number, "it is the same file's");
}

#[test]
fn a_name_leads_to_what_was_last_found_under_it() {
    let inodes = Inodes::new(handle(0));
    let (a, b) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let found = |text: &str| inodes.named(ROOT, &name(text)).map(|inode| inode.number);
    inodes.name(&a, (ROOT, name("x")), false, soon());
    inodes.name(&b, (ROOT, name("x")), false, soon());
    assert_eq!(found("x"), Some(b.number));
    inodes.unname(&a, &(ROOT, name("x")));
    assert_eq!(found("x"), Some(b.number), "it is another file's by now");
    inodes.name(&b, (ROOT, name("y")), false, soon());
    assert_eq!((found("x"), found("y")), (Some(b.number), Some(b.number)), "it has two");
    inodes.unname(&b, &(ROOT, name("x")));
    assert_eq!((found("x"), found("y")), (None, Some(b.number)));
    inodes.forget(b.number, 1);
    assert_eq!(found("y"), None);
    inodes.name(&b, (ROOT, name("z")), false, soon());
    assert_eq!(found("z"), None, "the kernel does not know it any more");
}

#[test]
fn no_more_names_are_remembered_than_may_be_and_one_of_a_directory() {
    let inodes = Inodes::new(handle(0));
    let (file, directory) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
    let name = |n: usize| (ROOT, Name::new(format!("n{n}").as_bytes()).unwrap());
    for n in 0..NAMES_MAX {
        assert_eq!(inodes.name(&file, name(n), false, soon()), None);
    }
    assert_eq!(inodes.name(&file, name(0), false, soon()), None, "it is the last one now");
    assert_eq!(inodes.name(&file, name(100), false, soon()), Some(name(1)));
    assert!(inodes.named(ROOT, &name(1).1).is_none());
    assert_eq!(file.state.lock().names.len(), NAMES_MAX);
    assert_eq!(inodes.name(&directory, name(200), true, soon()), None);
    assert_eq!(inodes.name(&directory, name(201), true, soon()), Some(name(200)));
}

proptest! {
    /// Against a model that counts: a file has its node until the kernel has forgotten all its lookups.
    #[test]
    fn counts_are_the_kernels(steps in prop::collection::vec((1..6u8, any::<bool>(), 1..3u64), 1..80)) {
        let inodes = Inodes::new(handle(0));
        let mut model: Model<u8, (u64, u64)> = Model::new();
        let mut used = Model::new();
        for (file, told, count) in steps {
            if told {
                let number = inodes.remember(&handle(file)).number;
                let known = model.entry(file).or_insert((number, 0));
                prop_assert_eq!(known.0, number);
                prop_assert!(*used.entry(number).or_insert(file) == file, "a number is one file's for ever");
                known.1 += 1;
            } else if let Some((number, lookups)) = model.get_mut(&file) {
                let all = count >= *lookups;
                prop_assert_eq!(inodes.forget(*number, count).is_some(), all);
                *lookups = lookups.saturating_sub(count);
                if all {
                    model.remove(&file);
                }
            }
            prop_assert_eq!(inodes.len(), model.len() + 1);
            for (number, file) in &used {
                prop_assert_eq!(inodes.file_of(*number), Some(handle(*file)), "nor is it lost");
            }
            for (file, (number, _)) in &model {
                prop_assert_eq!(inodes.get(*number).unwrap().handle(), handle(*file));
            }
        }
    }
}
