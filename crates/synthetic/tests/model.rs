//! Random operations on a computed tree, compared with a model: a map from paths to files. Results, contents,
//! errors and the bytes of the overlay agree after every step.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::collections::BTreeMap;

use common::{Bench, bench_with, machine, mode, name, size};
use proptest::prelude::*;
use synthetic::Shape;
use vfs::{CreateHow, FileSystem, Handle, Name, Status, Want};

/// A path below the root, as one small number for each name.
type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Create(Path),
    Mkdir(Path),
    Symlink(Path),
    Link(Path, Path),
    Remove(Path),
    Rmdir(Path),
    Rename(Path, Path),
    Write(Path, u16, Vec<u8>),
    Cut(Path, u16),
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::collection::vec(0..4_u8, 1..4);
    let data = || prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        4 => path().prop_map(Step::Create),
        4 => path().prop_map(Step::Mkdir),
        1 => path().prop_map(Step::Symlink),
        2 => (path(), path()).prop_map(|(file, new)| Step::Link(file, new)),
        2 => path().prop_map(Step::Remove),
        2 => path().prop_map(Step::Rmdir),
        5 => (path(), path()).prop_map(|(old, new)| Step::Rename(old, new)),
        3 => (path(), 0..900_u16, data()).prop_map(|(file, offset, data)| Step::Write(file, offset, data)),
        1 => (path(), 0..900_u16).prop_map(|(file, size)| Step::Cut(file, size)),
    ]
}

type Id = usize;

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    File {
        data: Vec<u8>,
        /// Nobody has written it.
        computed: bool,
    },
    Directory,
    Symlink,
}

/// The model. The root has the empty path; a file may have several paths. Files without one keep their id.
struct Model {
    paths: BTreeMap<Path, Id>,
    files: Vec<(Kind, Handle)>,
    bytes_max: u64,
}

/// The target of every symbolic link.
const TARGET: &[u8] = b"target";

/// The bytes that a name adds to its directory.
const NAME_BYTES: u64 = 32;

/// A directory with two files, and one with a third file.
const SHAPE: &str = "files=3,per-directory=2,bytes=100";

fn called(number: u8) -> Name {
    match number {
        0 => name("d0000000"),
        1 => name("f0000000"),
        2 => name("f0000001"),
        _ => name([0xe9; 200]), // long and not UTF-8
    }
}

impl Model {
    fn walk(&self, path: &[u8]) -> Result<Id, Status> {
        let mut id = self.paths[&Path::new()];
        for depth in 1..=path.len() {
            self.is_dir(id).then_some(()).ok_or(Status::NotDir)?;
            id = *self.paths.get(&path[..depth]).ok_or(Status::NoEnt)?;
        }
        Ok(id)
    }

    fn is_dir(&self, id: Id) -> bool {
        self.files[id].0 == Kind::Directory
    }

    fn names_in(&self, directory: &[u8]) -> impl Iterator<Item = (u8, Id)> {
        let depth = directory.len() + 1;
        let below =
            self.paths.iter().filter(move |(path, _)| path.len() == depth && path.starts_with(directory));
        below.map(|(path, id)| (path[path.len() - 1], *id))
    }

    /// The bytes that the overlay has: computed ones take none.
    fn used(&self) -> u64 {
        let alive = self.files.iter().enumerate().filter(|(id, _)| self.links(*id) > 0);
        let data = alive.map(|(_, (kind, _))| match kind {
            Kind::File { data, computed: false } => data.len(),
            Kind::Symlink => TARGET.len(),
            Kind::File { .. } | Kind::Directory => 0,
        });
        data.sum::<usize>() as u64
    }

    fn links(&self, id: Id) -> usize {
        self.paths.values().filter(|&&other| other == id).count()
    }

    /// Are there bytes to take, in exchange for others?
    fn fits(&self, freed: u64, taken: u64) -> Result<(), Status> {
        let fits = taken <= freed || self.used() - freed + taken <= self.bytes_max;
        if fits { Ok(()) } else { Err(Status::NoSpc) }
    }

    fn may_make(&self, path: &[u8], content: u64) -> Result<(), Status> {
        let (_, above) = path.split_last().unwrap();
        self.is_dir(self.walk(above)?).then_some(()).ok_or(Status::NotDir)?;
        if self.paths.contains_key(path) {
            return Err(Status::Exist);
        }
        self.fits(0, content)
    }

    fn may_link(&self, id: Id, new: &[u8]) -> Result<(), Status> {
        let above = self.walk(&new[..new.len() - 1])?;
        if !self.is_dir(above) {
            return Err(Status::NotDir);
        }
        if self.is_dir(id) {
            return Err(Status::IsDir);
        }
        self.may_make(new, 0)
    }

    fn may_remove(&self, path: &[u8], as_directory: bool) -> Result<(), Status> {
        let id = self.walk(path)?;
        match (self.is_dir(id), as_directory) {
            (true, false) => Err(Status::IsDir),
            (false, true) => Err(Status::NotDir),
            (true, true) if self.names_in(path).next().is_some() => Err(Status::NotEmpty),
            _ => Ok(()),
        }
    }

    fn may_rename(&self, old: &[u8], new: &[u8]) -> Result<(), Status> {
        let moved = self.walk(old)?;
        let Some(&victim) = self.paths.get(new) else {
            if self.is_dir(moved) && new.starts_with(old) {
                return Err(Status::Inval);
            }
            return Ok(());
        };
        if moved == victim {
            return Ok(());
        }
        if self.is_dir(moved) && new.starts_with(old) {
            return Err(Status::Inval);
        }
        if old.starts_with(new) {
            return Err(Status::NotEmpty);
        }
        self.may_remove(new, self.is_dir(moved))
    }

    fn rename(&mut self, old: &[u8], new: &[u8]) {
        if self.paths[old] == self.paths.get(new).copied().unwrap_or(usize::MAX) {
            return;
        }
        self.paths.remove(new);
        let moved: Vec<Path> = self.paths.keys().filter(|path| path.starts_with(old)).cloned().collect();
        for path in moved {
            let id = self.paths.remove(&path).unwrap();
            self.paths.insert([new, &path[old.len()..]].concat(), id);
        }
    }

    fn make(&mut self, path: &[u8], kind: Kind, handle: Handle) {
        self.files.push((kind, handle));
        self.paths.insert(path.to_vec(), self.files.len() - 1);
    }

    /// The data of a file, and whether it is computed.
    fn data(&mut self, path: &[u8]) -> Result<(&mut Vec<u8>, &mut bool), Status> {
        let id = self.walk(path)?;
        match &mut self.files[id].0 {
            Kind::File { data, computed } => Ok((data, computed)),
            Kind::Directory => Err(Status::IsDir),
            Kind::Symlink => Err(Status::Inval),
        }
    }
}

/// The file of a path, by one LOOKUP for each name.
async fn walk(bench: &Bench, path: &[u8]) -> Result<Handle, Status> {
    let mut at = bench.root;
    for &part in path {
        let looked = bench.fs.lookup(&machine(), &at, &called(part), Want::None).await;
        at = looked.map_err(|error| error.status)?.node.handle;
    }
    Ok(at)
}

/// The directory and the name of a path.
async fn place(bench: &Bench, path: &[u8]) -> Result<(Handle, Name), Status> {
    let (last, above) = path.split_last().unwrap();
    Ok((walk(bench, above).await?, called(*last)))
}

/// Does a step. A step that makes a file returns its handle.
async fn apply(bench: &Bench, step: &Step) -> Result<Option<Handle>, Status> {
    let (fs, caller, set) = (&bench.fs, machine(), mode(0o755));
    let done = match step {
        Step::Create(path) => {
            let (at, new) = place(bench, path).await?;
            fs.create(&caller, &at, &new, CreateHow::Guarded, &set).await.map(|made| Some(made.node.handle))
        }
        Step::Mkdir(path) => {
            let (at, new) = place(bench, path).await?;
            fs.mkdir(&caller, &at, &new, &set, Want::None).await.map(|made| Some(made.node.handle))
        }
        Step::Symlink(path) => {
            let (at, new) = place(bench, path).await?;
            fs.symlink(&caller, &at, &new, TARGET, &set).await.map(|made| Some(made.node.handle))
        }
        Step::Link(file, path) => {
            let file = walk(bench, file).await?;
            let (at, new) = place(bench, path).await?;
            fs.link(&caller, &file, &at, &new).await.map(|_| None)
        }
        Step::Remove(path) => {
            let (at, old) = place(bench, path).await?;
            fs.remove(&caller, &at, &old).await.map(|_| None)
        }
        Step::Rmdir(path) => {
            let (at, old) = place(bench, path).await?;
            fs.rmdir(&caller, &at, &old).await.map(|_| None)
        }
        Step::Rename(old, new) => {
            let (from, to) = (place(bench, old).await?, place(bench, new).await?);
            fs.rename(&caller, &from.0, &from.1, &to.0, &to.1).await.map(|_| None)
        }
        Step::Write(path, offset, data) => {
            let file = walk(bench, path).await?;
            return bench.write(&file, u64::from(*offset), data).await.map(|_| None);
        }
        Step::Cut(path, to) => {
            let file = walk(bench, path).await?;
            return bench.set(&file, size(u64::from(*to))).await.map(|_| None);
        }
    };
    done.map_err(|error| error.status)
}

/// The result that the model expects of a step, before the step runs.
fn expected(model: &mut Model, step: &Step) -> Result<(), Status> {
    match step {
        Step::Create(path) | Step::Mkdir(path) => model.may_make(path, 0),
        Step::Symlink(path) => model.may_make(path, TARGET.len() as u64),
        Step::Link(file, path) => model.walk(file).and_then(|id| model.may_link(id, path)),
        Step::Remove(path) => model.may_remove(path, false),
        Step::Rmdir(path) => model.may_remove(path, true),
        Step::Rename(old, new) => {
            model.walk(&old[..old.len() - 1])?;
            let to = model.walk(&new[..new.len() - 1])?;
            model.is_dir(to).then_some(()).ok_or(Status::NotDir)?;
            model.may_rename(old, new)
        }
        Step::Write(path, offset, data) => {
            let (old, held) = lengths(model, path)?;
            if data.is_empty() {
                return Ok(());
            }
            model.fits(held, old.max(u64::from(*offset) + data.len() as u64))
        }
        Step::Cut(path, to) => {
            let (_, held) = lengths(model, path)?;
            model.fits(held, u64::from(*to))
        }
    }
}

/// The size of a file, and the bytes that the overlay has of it.
fn lengths(model: &mut Model, path: &[u8]) -> Result<(u64, u64), Status> {
    let (data, computed) = model.data(path)?;
    let size = data.len() as u64;
    Ok((size, if *computed { 0 } else { size }))
}

/// Does a step in the model that the file system has done.
fn follow(model: &mut Model, step: &Step, made: Option<Handle>) {
    match step {
        Step::Create(path) => model.make(path, Kind::File { data: vec![], computed: false }, made.unwrap()),
        Step::Mkdir(path) => model.make(path, Kind::Directory, made.unwrap()),
        Step::Symlink(path) => model.make(path, Kind::Symlink, made.unwrap()),
        Step::Link(file, path) => {
            let id = model.paths[file];
            model.paths.insert(path.clone(), id);
        }
        Step::Remove(path) | Step::Rmdir(path) => drop(model.paths.remove(path)),
        Step::Rename(old, new) => model.rename(old, new),
        Step::Write(path, offset, new) => {
            let ((data, computed), from) = (model.data(path).unwrap(), usize::from(*offset));
            if !new.is_empty() {
                *computed = false;
                data.resize(data.len().max(from + new.len()), 0);
                data[from..from + new.len()].copy_from_slice(new);
            }
        }
        Step::Cut(path, to) => {
            let (data, computed) = model.data(path).unwrap();
            data.resize((*to).into(), 0);
            *computed = false;
        }
    }
}

/// Every handle ever given out names its file, or is stale; every directory has its names.
async fn check(bench: &Bench, model: &Model) {
    for (id, (kind, handle)) in model.files.iter().enumerate() {
        let now = bench.fs.getattr(&machine(), handle).await.map_err(|error| error.status);
        let links = model.links(id);
        if links == 0 {
            assert_eq!(now, Err(Status::Stale));
            continue;
        }
        let now = now.unwrap();
        match kind {
            Kind::File { data, .. } => {
                assert_eq!(&bench.read(handle).await.unwrap()[..], &data[..]);
                assert_eq!((now.nlink as usize, now.size), (links, data.len() as u64));
            }
            Kind::Symlink => {
                assert_eq!(&bench.fs.readlink(&machine(), handle).await.unwrap().0[..], TARGET);
            }
            Kind::Directory => {
                let path = model.paths.iter().find(|(_, other)| **other == id).unwrap().0;
                let mut listed: Vec<_> = bench.list(handle, 300, true).await;
                listed.sort_by_key(|entry| entry.name.clone());
                let listed: Vec<_> =
                    listed.into_iter().map(|entry| (entry.name, entry.node.unwrap().handle)).collect();
                let names: Vec<_> =
                    model.names_in(path).map(|(last, id)| (called(last), model.files[id].1)).collect();
                assert_eq!(listed, names);
                let directories = model.names_in(path).filter(|(_, id)| model.is_dir(*id)).count();
                assert_eq!(now.nlink as usize, 2 + directories);
                assert_eq!(now.size, names.len() as u64 * NAME_BYTES);
                let parent = bench.fs.parent(&machine(), handle).await.unwrap().node.handle;
                let above = &path[..path.len().saturating_sub(1)];
                assert_eq!(parent, model.files[model.paths[above]].1);
            }
        }
    }
    let space = bench.fs.fsstat(&machine(), &bench.root).await.unwrap();
    assert_eq!(model.bytes_max - space.free_bytes, model.used());
}

/// The computed tree. The model has no name for the second directory, which is removed.
async fn at_the_start(bench: &Bench, bytes_max: u64) -> Model {
    let (fs, caller, root) = (&bench.fs, machine(), bench.root);
    let second = bench.lookup(&root, "d0000001").await.unwrap();
    bench.remove(&second, "f0000000").await.unwrap();
    fs.rmdir(&caller, &root, &name("d0000001")).await.unwrap();
    let files = vec![(Kind::Directory, root)];
    let mut model = Model { paths: BTreeMap::from([(Path::new(), 0)]), files, bytes_max };
    let first = bench.lookup(&root, "d0000000").await.unwrap();
    model.make(&[0], Kind::Directory, first);
    let shape: Shape = SHAPE.parse().unwrap();
    for (path, file) in [([0, 1], 0), ([0, 2], 1)] {
        let handle = walk(bench, &path).await.unwrap();
        model.make(&path, Kind::File { data: shape.bytes(file), computed: true }, handle);
    }
    model
}

async fn run(bytes_max: u64, steps: Vec<Step>) {
    let bench = bench_with(SHAPE, |options| options.bytes_max = bytes_max).await;
    let mut model = at_the_start(&bench, bytes_max).await;
    for step in steps {
        let expected = expected(&mut model, &step);
        let changes = |model: &Model| model.paths.clone();
        let before = (bench.stat(&bench.root).await.change, changes(&model));
        let done = apply(&bench, &step).await;
        assert_eq!(done.map(drop), expected, "{step:?}");
        if let Ok(made) = done {
            follow(&mut model, &step, made);
        }
        check(&bench, &model).await;
        let names = |paths: &BTreeMap<Path, Id>| {
            paths
                .iter()
                .filter(|(path, _)| path.len() == 1)
                .map(|(path, id)| (path[0], *id))
                .collect::<Vec<_>>()
        };
        if names(&before.1) != names(&model.paths) {
            assert!(bench.stat(&bench.root).await.change > before.0, "{step:?} changed the root");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn it_is_a_map_of_paths(
        bytes_max in prop_oneof![Just(1000_u64), Just(1 << 30)],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(bytes_max, steps));
    }
}
