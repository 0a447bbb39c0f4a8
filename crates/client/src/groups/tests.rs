//! Random operations of callers with many groups, through the layer and, with all groups, on a second file
//! system without it: the decisions are the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memory::{Memory, Options};
use proptest::prelude::*;
use vfs::{
    AccessMask, Caller, CreateHow, FileSystem, Handle, Lock, LockKind, LockRequest, Name, OpenRequest, Opens,
    Owner, Principal, ReadDir, SetAttributes, Share, Stability, StateidBasis, Status, Want,
};

use super::{BELIEVED, Sixteen, many, sending};
use crate::transport::GROUPS_MAX;

const DIRECTORIES: usize = 3;
const NAMES: usize = 4;
/// Users, and the groups that they may be in.
const USERS: std::ops::Range<u32> = 1..4;
const GROUPS: std::ops::Range<u32> = 100..150;

/// A caller: user, group and further groups.
#[derive(Clone, Debug)]
struct Who {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// A name in one of the directories.
#[derive(Clone, Copy, Debug)]
struct At {
    directory: usize,
    name: usize,
}

#[derive(Clone, Debug)]
enum What {
    Access,
    Read,
    Write,
    Open { share: u8 },
    OpenByName { share: u8, create: bool },
    Lookup,
    List,
    Delegate,
    Create { exclusive: bool, gid: Option<u32> },
    Mkdir,
    Remove,
    Rename { to: At },
    Link { to: At },
    Set { mode: Option<u32>, gid: Option<u32>, size: bool },
}

/// An operation, or a change of which the layer hears nothing.
#[derive(Clone, Debug)]
enum Step {
    Call(Who, At, What),
    Elsewhere { at: Option<At>, directory: usize, gid: u32, mode: u32 },
}

fn who() -> impl Strategy<Value = Who> {
    let groups = proptest::collection::vec(GROUPS, 0..60).prop_map(|all| {
        let mut seen = BTreeSet::new();
        all.into_iter().filter(|group| seen.insert(*group)).collect::<Vec<u32>>()
    });
    (USERS, GROUPS, groups).prop_map(|(uid, gid, groups)| Who { uid, gid, groups })
}

fn at() -> impl Strategy<Value = At> {
    (0..DIRECTORIES, 0..NAMES).prop_map(|(directory, name)| At { directory, name })
}

/// A mode with few bits, so that each class often decides otherwise than the next.
fn mode() -> impl Strategy<Value = u32> {
    (0_u32..0o1000, prop::bool::weighted(0.1)).prop_map(|(mode, set_gid)| mode | u32::from(set_gid) << 10)
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        Just(What::Access),
        Just(What::Read),
        Just(What::Write),
        (1_u8..4).prop_map(|share| What::Open { share }),
        (1_u8..4, any::<bool>()).prop_map(|(share, create)| What::OpenByName { share, create }),
        Just(What::Lookup),
        Just(What::List),
        Just(What::Delegate),
        (any::<bool>(), prop::option::of(GROUPS))
            .prop_map(|(exclusive, gid)| What::Create { exclusive, gid }),
        Just(What::Mkdir),
        Just(What::Remove),
        at().prop_map(|to| What::Rename { to }),
        at().prop_map(|to| What::Link { to }),
        (prop::option::of(mode()), prop::option::of(GROUPS), any::<bool>())
            .prop_map(|(mode, gid, size)| What::Set { mode, gid, size }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (who(), at(), what()).prop_map(|(who, at, what)| Step::Call(who, at, what)),
        1 => (prop::option::of(at()), 0..DIRECTORIES, GROUPS, mode())
            .prop_map(|(at, directory, gid, mode)| Step::Elsewhere { at, directory, gid, mode }),
    ]
}

/// A file system, with its directories.
struct Side<F: ?Sized> {
    fs: Arc<F>,
    directories: Vec<Handle>,
}

fn name(number: usize) -> Name {
    Name::new(format!("n{number}").as_bytes()).unwrap()
}

fn set(mode: u32, gid: Option<u32>) -> SetAttributes {
    SetAttributes { mode: Some(mode), gid, ..SetAttributes::default() }
}

/// Makes directories and files of all kinds, without the layer.
async fn prepared(modes: &[(u32, u32, u32)]) -> (Arc<Memory>, Vec<Handle>) {
    let (fs, machine) = (Arc::new(Memory::new(Options::default())), Caller::machine());
    let root = fs.root(&machine).await.unwrap().handle;
    let mut directories = Vec::new();
    let mut modes = modes.iter().copied();
    let mut next = || {
        let (uid, gid, mode) = modes.next().unwrap();
        SetAttributes { uid: Some(uid), ..set(mode, Some(gid)) }
    };
    for number in 0..DIRECTORIES {
        let made = fs.mkdir(&machine, &root, &name(number), &next(), Want::None).await.unwrap();
        let directory = made.node.handle;
        for file in 0..NAMES - 1 {
            fs.create(&machine, &directory, &name(file), CreateHow::Guarded, &next()).await.unwrap();
        }
        directories.push(directory);
    }
    (fs, directories)
}

impl<F: FileSystem + ?Sized> Side<F> {
    async fn find(&self, at: At) -> Option<Handle> {
        let (machine, directory) = (Caller::machine(), &self.directories[at.directory]);
        let called = name(at.name);
        let looked = self.fs.lookup(&machine, directory, &called, Want::None);
        looked.await.ok().map(|looked| looked.node.handle)
    }

    /// Does it, and says how it was decided.
    async fn apply(&self, caller: &Caller, at: At, what: &What) -> Result<AccessMask, Status> {
        let (directory, called) = (&self.directories[at.directory], &name(at.name));
        let file = self.find(at).await;
        let share = |share: u8| Share::from_bits_truncate(share);
        let owner = Owner(Bytes::from_static(b"o"));
        let done = match (what, file) {
            (What::Lookup, _) => self.fs.lookup(caller, directory, called, Want::None).await.map(drop),
            (What::List, _) => {
                let part = ReadDir {
                    cookie: 0,
                    verifier: vfs::Verifier::default(),
                    bytes: 4096,
                    plus: true,
                    want_directory_lease: false,
                    names_suffice: false,
                };
                self.fs.readdir(caller, directory, part).await.map(drop)
            }
            (What::Delegate, _) => return self.delegated(caller, directory).await,
            (What::Create { exclusive, gid }, _) => {
                let how = if *exclusive { CreateHow::Guarded } else { CreateHow::Unchecked };
                let set = SetAttributes { size: Some(0), ..set(0o640, *gid) };
                self.fs.create(caller, directory, called, how, &set).await.map(drop)
            }
            (What::OpenByName { share: wanted, create }, _) => {
                let how = (CreateHow::Unchecked, set(0o604, None));
                let request = OpenRequest {
                    create: create.then_some(how),
                    ..OpenRequest::new(*directory, Some(called.clone()), owner, share(*wanted))
                };
                return self.opened(caller, &request).await;
            }
            (What::Mkdir, _) => {
                self.fs.mkdir(caller, directory, called, &set(0o750, None), Want::None).await.map(drop)
            }
            (What::Remove, _) => self.fs.remove(caller, directory, called).await.map(drop),
            (What::Rename { to }, _) => {
                let (into, new) = (&self.directories[to.directory], &name(to.name));
                self.fs.rename(caller, directory, called, into, new).await.map(drop)
            }
            (_, None) => return Err(Status::NoEnt),
            (What::Access, Some(file)) => {
                let accessed = self.fs.access(caller, &file, AccessMask::all()).await;
                return accessed.map(|accessed| accessed.granted).map_err(|error| error.status);
            }
            (What::Read, Some(file)) => {
                self.fs.read(caller, &file, StateidBasis::Anonymous, 0, 10).await.map(drop)
            }
            (What::Write, Some(file)) => {
                let (by, data) = (StateidBasis::Anonymous, Bytes::from_static(b"x"));
                self.fs.write(caller, &file, by, 0, data, Stability::FileSync).await.map(drop)
            }
            (What::Open { share: wanted }, Some(file)) => {
                let request = OpenRequest::new(file, None, owner, share(*wanted));
                return self.opened(caller, &request).await;
            }
            (What::Link { to }, Some(file)) => {
                let (into, new) = (&self.directories[to.directory], &name(to.name));
                self.fs.link(caller, &file, into, new).await.map(drop)
            }
            (What::Set { mode, gid, size }, Some(file)) => {
                let set = SetAttributes {
                    mode: *mode,
                    gid: *gid,
                    size: size.then_some(3),
                    ..SetAttributes::default()
                };
                self.fs.setattr(caller, &file, &set, None).await.map(drop)
            }
        };
        done.map(|()| AccessMask::empty()).map_err(|error| error.status)
    }

    async fn delegated(&self, caller: &Caller, directory: &Handle) -> Result<AccessMask, Status> {
        let delegated = self.fs.delegate(caller, directory, AccessMask::all()).await;
        let delegated = delegated.map_err(|error| error.status)?;
        if let Some(lease) = delegated.lease {
            self.fs.returned(caller, lease.id).await.unwrap();
        }
        Ok(delegated.accessed.granted)
    }

    async fn opened(&self, caller: &Caller, request: &OpenRequest) -> Result<AccessMask, Status> {
        let opened = self.fs.open(caller, request).await.map_err(|error| error.status)?;
        self.fs.close(caller, opened.id).await.unwrap();
        Ok(AccessMask::empty())
    }

    /// A change by root of this side, past the layer.
    async fn change(&self, at: Option<At>, directory: usize, set: &SetAttributes) {
        let object = match at {
            Some(at) => self.find(at).await,
            None => Some(self.directories[directory]),
        };
        if let Some(object) = object {
            self.fs.setattr(&Caller::machine(), &object, set, None).await.unwrap();
        }
    }
}

struct Pair {
    layered: Side<Sixteen<Memory>>,
    below: Side<Memory>,
    reference: Side<Memory>,
}

impl Pair {
    async fn new(modes: &[(u32, u32, u32)]) -> Pair {
        let (fs, directories) = prepared(modes).await;
        let layered = Side { fs: Arc::new(Sixteen::new(fs.clone())), directories: directories.clone() };
        let below = Side { fs, directories };
        let (fs, directories) = prepared(modes).await;
        Pair { layered, below, reference: Side { fs, directories } }
    }

    async fn elsewhere(&self, at: Option<At>, directory: usize, set: &SetAttributes) {
        self.below.change(at, directory, set).await;
        self.reference.change(at, directory, set).await;
    }
}

fn caller(who: &Who) -> Caller {
    Caller::unix(who.uid, who.gid, &who.groups)
}

fn in_time<F: Future<Output = Result<(), TestCaseError>>>(test: F) -> Result<(), TestCaseError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(test)
}

fn modes() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    proptest::collection::vec((USERS, GROUPS, mode()), DIRECTORIES * NAMES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn sixteen_groups_decide_as_all_of_them(
        modes in modes(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        in_time(async {
            let pair = Pair::new(&modes).await;
            for step in steps {
                match step {
                    Step::Call(who, at, what) => {
                        let caller = caller(&who);
                        let expected = pair.reference.apply(&caller, at, &what).await;
                        let decided = pair.layered.apply(&caller, at, &what).await;
                        prop_assert_eq!(decided, expected, "{:?} {:?} {:?}", who, at, what);
                    }
                    Step::Elsewhere { at, directory, gid, mode } => {
                        pair.elsewhere(at, directory, &set(mode, Some(gid))).await;
                        tokio::time::advance(BELIEVED + Duration::from_secs(1)).await;
                    }
                }
            }
            Ok(())
        })?;
    }

    /// At once after a change that the layer has not heard of, it refuses nothing that the origin grants. No
    /// success that a cache believes rests on the old group, but that of an OPEN. A user whose new group may
    /// do less than others may learn that a name does not exist: such a reply shows no attributes.
    #[test]
    fn a_change_of_groups_is_seen_by_a_refusal_and_by_a_reply(
        modes in modes(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        in_time(async {
            let pair = Pair::new(&modes).await;
            for step in steps {
                match step {
                    Step::Call(who, at, what) => {
                        let caller = caller(&who);
                        let believed = matches!(what, What::Lookup | What::List | What::Delegate);
                        let exact = believed || matches!(what, What::Access | What::Read);
                        if !exact && !matches!(what, What::Open { .. }) {
                            continue;
                        }
                        let expected = pair.reference.apply(&caller, at, &what).await;
                        let decided = pair.layered.apply(&caller, at, &what).await;
                        let missing = decided == Err(Status::NoEnt) && expected == Err(Status::Access);
                        if !missing && (exact || decided.is_err()) {
                            prop_assert_eq!(decided, expected, "{:?} {:?} {:?}", who, at, what);
                        }
                    }
                    Step::Elsewhere { at, directory, gid, mode } => {
                        pair.elsewhere(at, directory, &set(mode, Some(gid))).await;
                        tokio::time::advance(Duration::from_millis(1)).await;
                    }
                }
            }
            Ok(())
        })?;
    }
}

/// A file system that has seen a caller with more groups than the wire takes.
#[tokio::test]
async fn nobody_below_sees_more_than_sixteen() {
    let pair = Pair::new(&[(1, 100, 0o750); DIRECTORIES * NAMES]).await;
    let many = Caller::unix(2, 149, &(100..140).rev().collect::<Vec<_>>());
    let fs = &pair.layered.fs;
    let call = |caller: Caller| async move {
        let Principal::Unix(credential) = caller.principal else { panic!("a user") };
        assert_eq!(credential.groups.len(), GROUPS_MAX);
        assert_eq!(credential.groups[0], 100, "the group of the object");
        Ok(())
    };
    fs.with_groups(&many, super::Concerns::of(&pair.layered.directories), call).await.unwrap();
}

/// The open was made by a user whose groups are all sent, so the layer did not need the group of the file.
#[tokio::test]
async fn a_lock_goes_with_the_group_of_the_open_file() {
    let layered = Pair::new(&[(1, 100, 0o755); DIRECTORIES * NAMES]).await.layered;
    let file = layered.find(At { directory: 0, name: 0 }).await.unwrap();
    let owner = Owner(Bytes::from_static(b"o"));
    let request = OpenRequest::new(file, None, owner.clone(), Share::READ);
    let open = layered.fs.open(&Caller::unix(1, 100, &[]), &request).await.unwrap().id;
    assert_eq!(layered.fs.seen.lock().group(&file, None), None);
    let lock = Lock { owner, kind: LockKind::Shared, offset: 0, length: 1 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    let many = Caller::unix(2, 149, &(100..140).rev().collect::<Vec<_>>());
    layered.fs.lock(&many, open, &request).await.unwrap();
    assert_eq!(layered.fs.seen.lock().group(&file, None), Some(100));
    layered.fs.close(&many, open).await.unwrap();
    assert_eq!(layered.fs.opens.lock().file(open), None);
}

fn groups(of: &Caller) -> Vec<u32> {
    let Principal::Unix(credential) = &of.principal else { panic!("a user") };
    credential.groups.clone()
}

#[test]
fn the_groups_that_matter_come_first() {
    let caller = Caller::unix(7, 100, &(100..140).collect::<Vec<_>>());
    let all = many(&caller).unwrap();
    let rest = |range: std::ops::Range<u32>| range.collect::<Vec<_>>();
    assert_eq!(groups(&sending(&caller, all, &[])), rest(101..117));
    let chosen = groups(&sending(&caller, all, &[139, 5, 138, 139, 102]));
    assert_eq!(chosen, [&[139, 138, 102, 101][..], &rest(103..115)].concat(), "5 is not a group of theirs");
    assert_eq!(groups(&sending(&caller, all, &[100])), rest(101..117), "the gid is sent anyway");
    assert!(many(&Caller::unix(7, 100, &rest(100..116))).is_none());
    assert!(many(&Caller::machine()).is_none());
}
