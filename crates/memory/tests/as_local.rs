//! Random operations of several users, on a directory of this machine and in memory. Both back ends give the
//! same statuses and attributes, so the rules of `memory` are those of Linux. If the process is not root, one
//! user does everything.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use local::LocalFs;
use memory::Memory;
use proptest::prelude::*;
use vfs::{
    AccessMask, Attributes, Caller, CreateHow, Device, FileSystem, FileType, Handle, Name, OpenRequest,
    Owner, ReadDir, Result, SetAttributes, SetTime, Share, Stability, StateidBasis, Status, Timestamp, Want,
    Wcc,
};

/// What a step does; numbers choose among files and names.
#[derive(Clone, Debug)]
enum Operation {
    Create(usize, u8, CreateHow, SetAttributes),
    Mkdir(usize, u8, SetAttributes),
    Symlink(usize, u8),
    Mknod(usize, u8, FileType),
    Link(usize, usize, u8),
    Remove(usize, u8),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8),
    Write(usize, u16, u8),
    Read(usize),
    Set(usize, SetAttributes),
    Access(usize),
    Open(usize, Option<u8>, Share, Option<(CreateHow, SetAttributes)>),
    List(usize),
    Parent(usize),
}

/// The callers: root, and two users who share a group.
fn callers() -> [Caller; 4] {
    [Caller::machine(), Caller::unix(0, 0, &[]), Caller::unix(1, 1, &[9]), Caller::unix(2, 9, &[])]
}

fn set() -> impl Strategy<Value = SetAttributes> {
    let bits = prop_oneof![
        4 => any::<u16>().prop_map(|bits| u32::from(bits) & 0o7777),
        4 => Just(0o777),
        1 => Just(0o1777),
        1 => Just(0o2775)
    ];
    let time = || {
        let given = prop_oneof![Just(SetTime::Server), Just(SetTime::Client(Timestamp::new(1000, 0)))];
        prop::option::weighted(0.2, given)
    };
    let id = || prop::option::weighted(0.2, prop_oneof![0..3_u32, Just(9)]);
    let size = prop::option::weighted(0.3, 0..50_u64);
    (prop::option::weighted(0.7, bits), id(), id(), size, time(), time())
        .prop_map(|(mode, uid, gid, size, atime, mtime)| SetAttributes { mode, uid, gid, size, atime, mtime })
}

/// Attributes of one kind. If one of several cannot be set, a directory keeps the earlier ones, and the file
/// system in memory sets none.
fn set_one() -> impl Strategy<Value = SetAttributes> {
    let none = SetAttributes::default();
    (set(), 0..4_u8).prop_map(move |(set, kind)| match kind {
        0 => SetAttributes { mode: set.mode, ..none },
        1 => SetAttributes { uid: set.uid, gid: set.gid, ..none },
        2 => SetAttributes { size: set.size, ..none },
        _ => SetAttributes { atime: set.atime, mtime: set.mtime, ..none },
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let at = || prop_oneof![3 => 0..4_usize, 1 => 0..40_usize];
    let called = || 0..4_u8;
    // A resent exclusive create has the attributes of the first one.
    let exclusive = || (1..3_u8).prop_map(|byte| (CreateHow::Exclusive([byte; 8]), SetAttributes::default()));
    // A directory may make a file with several system calls. The kernel then decides about set-group-id
    // twice.
    let given = || set().prop_map(|set| SetAttributes { mode: set.mode.map(|mode| mode & 0o5777), ..set });
    let create = || {
        prop_oneof![
            given().prop_map(|set| (CreateHow::Guarded, set)),
            given().prop_map(|set| (CreateHow::Unchecked, set)),
            exclusive(),
        ]
    };
    let kind = prop_oneof![
        Just(FileType::Fifo),
        Just(FileType::Socket),
        Just(FileType::Character),
        Just(FileType::Regular)
    ];
    let share = prop_oneof![Just(Share::READ), Just(Share::WRITE), Just(Share::READ | Share::WRITE)];
    prop_oneof![
        4 => (at(), called(), create())
            .prop_map(|(at, new, (how, set))| Operation::Create(at, new, how, set)),
        4 => (at(), called(), set()).prop_map(|(at, new, set)| Operation::Mkdir(at, new, set)),
        1 => (at(), called()).prop_map(|(at, new)| Operation::Symlink(at, new)),
        1 => (at(), called(), kind).prop_map(|(at, new, kind)| Operation::Mknod(at, new, kind)),
        2 => (0..40_usize, at(), called()).prop_map(|(file, at, new)| Operation::Link(file, at, new)),
        2 => (at(), called()).prop_map(|(at, old)| Operation::Remove(at, old)),
        2 => (at(), called()).prop_map(|(at, old)| Operation::Rmdir(at, old)),
        4 => (at(), called(), at(), called()).prop_map(|(at, a, to, b)| Operation::Rename(at, a, to, b)),
        3 => (0..40_usize, 0..90_u16, 0..20_u8).prop_map(|(file, at, size)| Operation::Write(file, at, size)),
        3 => (0..40_usize).prop_map(Operation::Read),
        5 => (0..40_usize, set_one()).prop_map(|(file, set)| Operation::Set(file, set)),
        2 => (0..40_usize).prop_map(Operation::Access),
        3 => (at(), prop::option::weighted(0.8, called()), share, prop::option::of(create()))
            .prop_map(|(at, called, share, create)| Operation::Open(at, called, share, create)),
        1 => at().prop_map(Operation::List),
        1 => at().prop_map(Operation::Parent),
    ]
}

fn name(called: u8) -> Name {
    Name::new(&[b'a' + called]).unwrap()
}

/// A file system, and the handles that it has given out, in the order in which they came.
struct Side {
    fs: Arc<dyn FileSystem>,
    handles: Vec<Handle>,
}

/// What both sides must agree on: a handle by its place in the order, and what a clock does not decide.
type Seen = (Option<usize>, Option<Shape>, Option<Bytes>, Vec<Name>);

#[derive(Debug, PartialEq)]
struct Shape {
    file_type: FileType,
    mode: u32,
    owner: (u32, u32),
    /// Links and size; each file system counts those of a directory in its own way.
    counted: Option<(u32, u64)>,
    rdev: Device,
}

fn shape(attributes: &Attributes) -> Shape {
    let Attributes { file_type, mode, uid, gid, nlink, size, rdev, .. } = *attributes;
    let counted = (!attributes.is_dir()).then_some((nlink, size));
    Shape { file_type, mode, owner: (uid, gid), counted, rdev }
}

/// Every change has the state before, and moves the change attribute.
fn moved(wcc: Wcc) {
    let change = wcc.change_info().unwrap();
    assert!(change.before <= change.after, "{wcc:?}");
}

impl Side {
    fn at(&self, number: usize) -> Handle {
        self.handles[number % self.handles.len()]
    }

    fn place(&mut self, handle: Handle) -> usize {
        let known = self.handles.iter().position(|other| *other == handle);
        known.unwrap_or_else(|| {
            self.handles.push(handle);
            self.handles.len() - 1
        })
    }

    async fn apply(&mut self, caller: &Caller, operation: &Operation) -> Result<Seen> {
        let fs = self.fs.clone();
        let none = SetAttributes::default();
        let made = match operation {
            Operation::Create(at, new, how, set) => {
                fs.create(caller, &self.at(*at), &name(*new), *how, set).await?
            }
            Operation::Mkdir(at, new, set) => {
                fs.mkdir(caller, &self.at(*at), &name(*new), set, Want::None).await?
            }
            Operation::Symlink(at, new) => {
                fs.symlink(caller, &self.at(*at), &name(*new), b"target", &none).await?
            }
            Operation::Mknod(at, new, kind) => {
                let device = Device { major: 1, minor: 3 };
                fs.mknod(caller, &self.at(*at), &name(*new), *kind, device, &none).await?
            }
            Operation::Link(file, at, new) => {
                fs.link(caller, &self.at(*file), &self.at(*at), &name(*new)).await?
            }
            _ => return self.other(caller, operation).await,
        };
        moved(made.directory);
        let attributes = made.node.attributes.unwrap();
        Ok((Some(self.place(made.node.handle)), Some(shape(&attributes)), None, vec![]))
    }

    async fn other(&mut self, caller: &Caller, operation: &Operation) -> Result<Seen> {
        let fs = self.fs.clone();
        let by = StateidBasis::Anonymous;
        let wcc = match operation {
            Operation::Remove(at, old) => fs.remove(caller, &self.at(*at), &name(*old)).await?,
            Operation::Rmdir(at, old) => fs.rmdir(caller, &self.at(*at), &name(*old)).await?,
            Operation::Rename(at, old, to, new) => {
                let renamed =
                    fs.rename(caller, &self.at(*at), &name(*old), &self.at(*to), &name(*new)).await?;
                moved(renamed.from);
                renamed.to
            }
            Operation::Write(file, at, size) => {
                let data = vec![*size; (*size).into()].into();
                fs.write(caller, &self.at(*file), by, (*at).into(), data, Stability::Unstable).await?.wcc
            }
            Operation::Set(file, set) => fs.setattr(caller, &self.at(*file), set, None).await?,
            _ => return self.asked(caller, operation).await,
        };
        moved(wcc);
        Ok((None, wcc.after.map(|after| shape(&after)), None, vec![]))
    }

    async fn asked(&mut self, caller: &Caller, operation: &Operation) -> Result<Seen> {
        let fs = self.fs.clone();
        match operation {
            Operation::Read(file) => {
                let read = fs.read(caller, &self.at(*file), StateidBasis::Anonymous, 3, 50).await?;
                Ok((Some(read.eof.into()), None, Some(read.data.to_bytes().unwrap()), vec![]))
            }
            Operation::Access(file) => {
                let accessed = fs.access(caller, &self.at(*file), AccessMask::all()).await?;
                Ok((Some(accessed.granted.bits() as usize), None, None, vec![]))
            }
            Operation::Open(at, called, access, create) => {
                let owner = Owner(Bytes::from_static(b"owner"));
                let request = OpenRequest {
                    create: create.filter(|_| called.is_some()),
                    want: Want::None,
                    ..OpenRequest::new(self.at(*at), called.map(name), owner, *access)
                };
                let opened = fs.open(caller, &request).await?;
                fs.close(caller, opened.id).await?;
                let granted = Bytes::from(format!("{:?} {}", opened.granted, opened.created));
                let handle = self.place(opened.handle);
                Ok((Some(handle), Some(shape(&opened.attributes)), Some(granted), vec![]))
            }
            Operation::List(at) => {
                let part = ReadDir {
                    cookie: 0,
                    verifier: [0; 8],
                    bytes: 1 << 16,
                    plus: true,
                    want_directory_lease: false,
                    names_suffice: false,
                };
                let mut entries = fs.readdir(caller, &self.at(*at), part).await?.entries;
                entries.sort_by_key(|entry| entry.name.clone());
                let with = entries.iter().filter(|entry| entry.node.is_some()).count();
                Ok((Some(with), None, None, entries.into_iter().map(|entry| entry.name).collect()))
            }
            Operation::Parent(at) => {
                let looked = fs.parent(caller, &self.at(*at)).await?;
                Ok((Some(self.place(looked.node.handle)), None, None, vec![]))
            }
            _ => unreachable!("done before"),
        }
    }

    /// All files as they are now.
    async fn all(&self) -> Vec<Result<Shape, Status>> {
        let mut all = Vec::new();
        for handle in &self.handles {
            let mut now = self.fs.getattr(&Caller::machine(), handle).await;
            // A busy kernel says EAGAIN or ENOMEM of a file that is just being freed. A client asks again.
            while now.as_ref().is_err_and(|error| error.status == Status::Delay) {
                tokio::time::sleep(Duration::from_millis(10)).await;
                now = self.fs.getattr(&Caller::machine(), handle).await;
            }
            all.push(now.map(|attributes| shape(&attributes)).map_err(|error| error.status));
        }
        all
    }
}

/// Linux may refuse a link to a file of another user (`fs.protected_hardlinks`); the file system in memory
/// does not.
async fn may_link_be_refused(side: &Side, caller: &Caller, operation: &Operation) -> bool {
    let Operation::Link(file, ..) = operation else { return false };
    let vfs::Principal::Unix(user) = &caller.principal else { return false };
    let attributes = side.fs.getattr(&Caller::machine(), &side.at(*file)).await;
    user.uid != 0 && attributes.is_ok_and(|file| file.uid != user.uid)
}

async fn run(steps: Vec<(usize, Operation)>) {
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = local::Options { sync: false, ..local::Options::new(state.path()) };
    let local: Arc<dyn FileSystem> = Arc::new(LocalFs::open(directory.path(), options).unwrap());
    let machine = Caller::machine();
    let mut sides = Vec::new();
    for fs in [local, Arc::new(Memory::default())] {
        let root = fs.root(&machine).await.unwrap().handle;
        let wide = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
        fs.setattr(&machine, &root, &wide, None).await.unwrap();
        sides.push(Side { fs, handles: vec![root] });
    }
    let all = LocalFs::serves_all_users();
    for (number, (caller, operation)) in steps.iter().enumerate() {
        let caller = if all { callers()[caller % callers().len()].clone() } else { machine.clone() };
        if may_link_be_refused(&sides[0], &caller, operation).await {
            continue;
        }
        let mut seen = Vec::new();
        for side in &mut sides {
            seen.push(side.apply(&caller, operation).await.map_err(|error| error.status));
        }
        assert_eq!(seen[1], seen[0], "step {number}: {operation:?} by {:?}", caller.principal);
        assert_eq!(sides[1].all().await, sides[0].all().await, "after step {number}: {operation:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_rules_are_those_of_this_machine(
        steps in prop::collection::vec((0..8_usize, operation()), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
