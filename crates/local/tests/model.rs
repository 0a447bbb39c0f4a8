//! Random operations, compared with a model of a file system in memory, with restarts in between. Results,
//! contents and errors agree. Every handle ever given out names its file as long as the file has a name,
//! and is stale afterwards.
//!
//! Promise: stable-handles
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::collections::BTreeMap;

use common::{Served, machine, name, serve_with};
use local::HandleKind;
use proptest::prelude::*;
use vfs::{CreateHow, FileSystem, Handle, SetAttributes, Status};

/// An operation. Numbers choose among all files ever created, and among a few names.
#[derive(Clone, Debug)]
enum Step {
    Create(usize, u8),
    Mkdir(usize, u8),
    Symlink(usize, u8),
    Link(usize, usize, u8),
    Remove(usize, u8),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8),
    Write(usize, u16, Vec<u8>),
    Cut(usize, u16),
    Read(usize),
    Lookup(usize, u8),
    List(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    // Low numbers are directories created early, so that operations meet in them.
    let at = || prop_oneof![3 => 0..4_usize, 1 => 0..40_usize];
    let called = || 0..5_u8;
    prop_oneof![
        4 => (at(), called()).prop_map(|(at, called)| Step::Create(at, called)),
        4 => (at(), called()).prop_map(|(at, called)| Step::Mkdir(at, called)),
        1 => (at(), called()).prop_map(|(at, called)| Step::Symlink(at, called)),
        2 => (0..40_usize, at(), called()).prop_map(|(file, at, called)| Step::Link(file, at, called)),
        2 => (at(), called()).prop_map(|(at, called)| Step::Remove(at, called)),
        2 => (at(), called()).prop_map(|(at, called)| Step::Rmdir(at, called)),
        5 => (at(), called(), at(), called()).prop_map(|(at, a, to, b)| Step::Rename(at, a, to, b)),
        3 => (0..40_usize, 0..9000_u16, prop::collection::vec(any::<u8>(), 0..5000))
            .prop_map(|(file, offset, data)| Step::Write(file, offset, data)),
        1 => (0..40_usize, 0..9000_u16).prop_map(|(file, size)| Step::Cut(file, size)),
        2 => (0..40_usize).prop_map(Step::Read),
        2 => (at(), called()).prop_map(|(at, called)| Step::Lookup(at, called)),
        1 => at().prop_map(Step::List),
        1 => Just(Step::Restart),
    ]
}

type Id = usize;

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    File(Vec<u8>),
    Directory(BTreeMap<u8, Id>),
    Symlink,
}

struct File {
    kind: Kind,
    links: usize,
    handle: Handle,
}

/// The model: every file ever created, in the order of creation; 0 is the root.
struct Model {
    files: Vec<File>,
}

impl Model {
    fn choose(&self, number: usize) -> Id {
        number % self.files.len()
    }

    fn entries(&self, id: Id) -> Result<&BTreeMap<u8, Id>, Status> {
        match &self.files[id] {
            File { links: 0, .. } => Err(Status::Stale),
            File { kind: Kind::Directory(entries), .. } => Ok(entries),
            _ => Err(Status::NotDir),
        }
    }

    fn entries_mut(&mut self, id: Id) -> &mut BTreeMap<u8, Id> {
        match &mut self.files[id].kind {
            Kind::Directory(entries) => entries,
            _ => unreachable!("checked before"),
        }
    }

    fn data(&self, id: Id) -> Result<&Vec<u8>, Status> {
        match &self.files[id] {
            File { links: 0, .. } => Err(Status::Stale),
            File { kind: Kind::File(data), .. } => Ok(data),
            File { kind: Kind::Directory(_), .. } => Err(Status::IsDir),
            File { kind: Kind::Symlink, .. } => Err(Status::Inval),
        }
    }

    fn is_dir(&self, id: Id) -> bool {
        matches!(self.files[id].kind, Kind::Directory(_))
    }

    fn find(&self, directory: Id, called: u8) -> Result<Id, Status> {
        self.entries(directory)?.get(&called).copied().ok_or(Status::NoEnt)
    }

    fn may_make(&self, directory: Id, called: u8) -> Result<(), Status> {
        if self.entries(directory)?.contains_key(&called) { Err(Status::Exist) } else { Ok(()) }
    }

    fn made(&mut self, directory: Id, called: u8, kind: Kind, handle: Handle) {
        self.files.push(File { kind, links: 1, handle });
        let id = self.files.len() - 1;
        self.entries_mut(directory).insert(called, id);
    }

    fn may_remove(&self, directory: Id, called: u8, as_directory: bool) -> Result<Id, Status> {
        let id = self.find(directory, called)?;
        match (self.is_dir(id), as_directory) {
            (true, false) => Err(Status::IsDir),
            (false, true) => Err(Status::NotDir),
            (true, true) if !self.entries(id)?.is_empty() => Err(Status::NotEmpty),
            _ => Ok(id),
        }
    }

    fn unlink(&mut self, directory: Id, called: u8) {
        let id = self.entries_mut(directory).remove(&called).unwrap();
        self.files[id].links -= 1;
    }

    fn is_within(&self, id: Id, above: Id) -> bool {
        id == above
            || self.files[above].links > 0
                && self
                    .entries(above)
                    .is_ok_and(|entries| entries.values().any(|&below| self.is_within(id, below)))
    }

    fn may_rename(&self, from: Id, old: u8, to: Id, new: u8) -> Result<(), Status> {
        self.entries(from)?;
        self.entries(to)?;
        let moved = self.find(from, old)?;
        if self.is_dir(moved) && self.is_within(to, moved) {
            return Err(Status::Inval);
        }
        let Ok(victim) = self.find(to, new) else { return Ok(()) };
        if victim == moved {
            return Ok(());
        }
        // The moved file is below the directory that it would replace.
        if self.is_dir(victim) && self.is_within(from, victim) {
            return Err(Status::NotEmpty);
        }
        match (self.is_dir(moved), self.is_dir(victim)) {
            (true, false) => Err(Status::NotDir),
            (false, true) => Err(Status::IsDir),
            (true, true) if !self.entries(victim)?.is_empty() => Err(Status::NotEmpty),
            _ => Ok(()),
        }
    }

    fn rename(&mut self, from: Id, old: u8, to: Id, new: u8) {
        let moved = self.find(from, old).unwrap();
        if self.find(to, new) == Ok(moved) {
            return;
        }
        if self.find(to, new).is_ok() {
            self.unlink(to, new);
        }
        self.entries_mut(from).remove(&old);
        self.entries_mut(to).insert(new, moved);
    }
}

fn called(number: u8) -> vfs::Name {
    // One name is long and not UTF-8.
    match number {
        4 => name([0xe9; 200]),
        number => name([b'a' + number]),
    }
}

async fn run(mut served: Served, steps: Vec<Step>) {
    let root = served.root().await;
    let mut model =
        Model { files: vec![File { kind: Kind::Directory(BTreeMap::new()), links: 1, handle: root }] };
    for step in steps {
        if matches!(step, Step::Restart) {
            served = served.restarted();
            check_handles(&served, &model).await;
        } else {
            apply(&served, &mut model, &step).await;
        }
    }
    check_handles(&served, &model).await;
    check_tree(&served, &model, 0).await;
}

async fn apply(served: &Served, model: &mut Model, step: &Step) {
    let fs = &served.fs;
    let caller = machine();
    let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let handle = |id: Id| model.files[id].handle;
    match step {
        Step::Create(at, new) => {
            let at = model.choose(*at);
            let done = fs.create(&caller, &handle(at), &called(*new), CreateHow::Guarded, &set).await;
            let expected = model.may_make(at, *new);
            assert_eq!(done.as_ref().map(drop).map_err(|error| error.status), expected, "{step:?}");
            if let Ok(made) = done {
                model.made(at, *new, Kind::File(vec![]), made.node.handle);
            }
        }
        Step::Mkdir(at, new) => {
            let at = model.choose(*at);
            let done = fs.mkdir(&caller, &handle(at), &called(*new), &set, vfs::Want::None).await;
            let expected = model.may_make(at, *new);
            assert_eq!(done.as_ref().map(drop).map_err(|error| error.status), expected, "{step:?}");
            if let Ok(made) = done {
                model.made(at, *new, Kind::Directory(BTreeMap::new()), made.node.handle);
            }
        }
        Step::Symlink(at, new) => {
            let at = model.choose(*at);
            let done = fs.symlink(&caller, &handle(at), &called(*new), b"target", &set).await;
            let expected = model.may_make(at, *new);
            assert_eq!(done.as_ref().map(drop).map_err(|error| error.status), expected, "{step:?}");
            if let Ok(made) = done {
                model.made(at, *new, Kind::Symlink, made.node.handle);
            }
        }
        Step::Link(file, at, new) => {
            let (file, at) = (model.choose(*file), model.choose(*at));
            let done = fs.link(&caller, &handle(file), &handle(at), &called(*new)).await;
            let alive = if model.files[file].links == 0 { Err(Status::Stale) } else { Ok(()) };
            let may_link = if model.is_dir(file) { Err(Status::IsDir) } else { Ok(()) };
            let expected = model.entries(at).map(drop).and(alive).and(may_link).and(model.may_make(at, *new));
            match (&done, expected) {
                (Err(error), Err(expected)) if error.status == Status::Stale => {
                    assert!(expected == Status::Stale || model.files[file].links == 0, "{step:?}");
                }
                _ => assert_eq!(done.as_ref().map(drop).map_err(|error| error.status), expected, "{step:?}"),
            }
            if let Ok(made) = done {
                assert_eq!(made.node.handle, handle(file));
                model.entries_mut(at).insert(*new, file);
                model.files[file].links += 1;
            }
        }
        Step::Remove(at, old) | Step::Rmdir(at, old) => {
            let at = model.choose(*at);
            let as_directory = matches!(step, Step::Rmdir(..));
            let done = if as_directory {
                fs.rmdir(&caller, &handle(at), &called(*old)).await
            } else {
                fs.remove(&caller, &handle(at), &called(*old)).await
            };
            let expected = model.may_remove(at, *old, as_directory);
            assert_eq!(done.map(drop).map_err(|error| error.status), expected.map(drop), "{step:?}");
            if expected.is_ok() {
                model.unlink(at, *old);
            }
        }
        Step::Rename(from, old, to, new) => {
            let (from, to) = (model.choose(*from), model.choose(*to));
            let done = fs.rename(&caller, &handle(from), &called(*old), &handle(to), &called(*new)).await;
            let expected = model.may_rename(from, *old, to, *new);
            let done = done.map(drop).map_err(|error| error.status);
            if done != Err(Status::Stale) || model.files[from].links > 0 && model.files[to].links > 0 {
                assert_eq!(done, expected, "{step:?}");
            }
            if done.is_ok() {
                model.rename(from, *old, to, *new);
            }
        }
        Step::Write(file, offset, data) => {
            let file = model.choose(*file);
            let done = served.write(&caller, &handle(file), u64::from(*offset), data).await;
            assert_eq!(done.map(drop), model.data(file).map(drop), "{step:?}");
            if done.is_ok()
                && let Kind::File(content) = &mut model.files[file].kind
                && !data.is_empty()
            {
                let end = usize::from(*offset) + data.len();
                content.resize(content.len().max(end), 0);
                content[usize::from(*offset)..end].copy_from_slice(data);
            }
        }
        Step::Cut(file, size) => {
            let file = model.choose(*file);
            let set = SetAttributes { size: Some((*size).into()), ..SetAttributes::default() };
            let done =
                fs.setattr(&caller, &handle(file), &set, None).await.map(drop).map_err(|error| error.status);
            assert_eq!(done, model.data(file).map(drop), "{step:?}");
            if let Kind::File(content) = &mut model.files[file].kind
                && done.is_ok()
            {
                content.resize((*size).into(), 0);
            }
        }
        Step::Read(file) => {
            let file = model.choose(*file);
            let done = served.read(&caller, &handle(file), 0, 1 << 16).await.map(|(data, _)| data.to_vec());
            assert_eq!(done.as_ref().map_err(|status| *status), model.data(file), "{step:?}");
        }
        Step::Lookup(at, old) => {
            let at = model.choose(*at);
            let done = fs.lookup(&caller, &handle(at), &called(*old), vfs::Want::None).await;
            let done = done.map(|looked| looked.node.handle).map_err(|error| error.status);
            assert_eq!(done, model.find(at, *old).map(handle), "{step:?}");
        }
        Step::List(at) => {
            let at = model.choose(*at);
            if let Ok(entries) = model.entries(at) {
                let mut listed: Vec<_> = served.list(&handle(at), 300, true).await;
                listed.sort_by_key(|entry| entry.name.clone());
                let listed: Vec<_> =
                    listed.iter().map(|entry| (entry.name.clone(), entry.node.unwrap().handle)).collect();
                let expected: Vec<_> = entries.iter().map(|(&old, &id)| (called(old), handle(id))).collect();
                assert_eq!(listed, expected);
            }
        }
        Step::Restart => {}
    }
}

/// Every handle ever given out names its file, or is stale.
async fn check_handles(served: &Served, model: &Model) {
    for file in &model.files {
        let now = served.fs.getattr(&machine(), &file.handle).await.map_err(|error| error.status);
        match (now, file.links) {
            (Ok(attributes), links @ 1..) => {
                assert_eq!(attributes.is_dir(), matches!(file.kind, Kind::Directory(_)));
                if let Kind::File(data) = &file.kind {
                    assert_eq!((attributes.size, attributes.nlink), (data.len() as u64, links as u32));
                }
            }
            (Err(Status::Stale), 0) => {}
            (now, links) => panic!("{:?} with {links} links: {now:?}", file.handle),
        }
    }
}

/// The served directory has the content of the model.
async fn check_tree(served: &Served, model: &Model, directory: Id) {
    for (&old, &id) in model.entries(directory).unwrap() {
        let file = &model.files[id];
        let found = served
            .fs
            .lookup(&machine(), &model.files[directory].handle, &called(old), vfs::Want::None)
            .await
            .unwrap();
        assert_eq!(found.node.handle, file.handle);
        match &file.kind {
            Kind::File(data) => {
                assert_eq!(
                    &served.read(&machine(), &file.handle, 0, 1 << 16).await.unwrap().0[..],
                    &data[..]
                );
            }
            Kind::Symlink => {
                assert_eq!(&served.fs.readlink(&machine(), &file.handle).await.unwrap().0[..], b"target");
            }
            Kind::Directory(_) => {
                let parent = served.fs.parent(&machine(), &file.handle).await.unwrap();
                assert_eq!(parent.node.handle, model.files[directory].handle);
                Box::pin(check_tree(served, model, id)).await;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn it_is_a_file_system(table: bool, steps in prop::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let served = serve_with(|options| {
            options.sync = false;
            options.handles = if table { HandleKind::Table } else { HandleKind::Kernel };
        });
        runtime.block_on(run(served, steps));
    }
}
