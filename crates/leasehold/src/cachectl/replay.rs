//! `warm --profile`: brings what a profile names, as the program will use it.
//!
//! First come the directories, from the root down: a directory is listed if the program listed it or used
//! several of its names, and otherwise its names are looked up. Then come the files, in the order in which
//! they were opened: the lease and the recorded bytes of each. Several are brought at a time, and the cache
//! bounds the calls in flight ([`cache::Cache::bring_file`]).
//!
//! All calls are made as the caller of the command. A file that this caller may not read is counted and left
//! out, and a path that is gone is counted. Neither is a failure, because a tree changes. Data that is here
//! already costs no call, so an interrupted replay resumes where it stopped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cache::{BroughtListing, Cache, Completed, Place, Use, UsedPath};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use vfs::{Caller, FileSystem, Handle, Name, Status};

use super::execute::{Sink, Stop};
use super::profile::{Line, show_path};

/// Directories or files that are brought at a time.
const AT_A_TIME: usize = 24;
/// Directories and files of one part of a profile: a wrong one must not fill the memory with deep paths.
const NODES_MAX: usize = 1 << 17;
/// Bytes that come with the open of a file of which no range is recorded.
const OPENED_BYTES: u64 = 256 << 10;
/// How long the origin may leave calls without an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether it answers.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The work so far, in uses of the profile.
#[derive(Default)]
struct Tally {
    uses: u64,
    /// Uses that name something below the root, and need it to be there.
    present: u64,
    done: u64,
    /// Bytes that the cache is to hold.
    planned: u64,
    /// Directories whose names were brought.
    listings: u64,
    /// Files of which bytes were brought.
    fetched: u64,
    bytes: u64,
    /// Files of which all recorded bytes were here.
    here: u64,
    gone: u64,
    denied: u64,
    skipped: u64,
    failed: u64,
}

impl Tally {
    fn to_json(&self) -> Value {
        json!({
            "uses": self.uses,
            "present": self.present,
            "planned": self.planned,
            "done": self.done,
            "listings": self.listings,
            "fetched": self.fetched,
            "bytes": self.bytes,
            "here": self.here,
            "gone": self.gone,
            "denied": self.denied,
            "skipped": self.skipped,
            "failed": self.failed,
        })
    }
}

/// A path of the profile, or one above.
#[derive(Default)]
struct Node {
    children: BTreeMap<Name, usize>,
    /// How it was used, and when.
    used: Option<(usize, Use)>,
}

/// The paths of a profile as a tree. The root is the first node.
struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// # Errors
    /// If there are more than [`NODES_MAX`].
    fn of(lines: Vec<Line>) -> Result<Tree, Stop> {
        let mut tree = Tree { nodes: vec![Node::default()] };
        for (order, Line(UsedPath { path, used })) in lines.into_iter().enumerate() {
            let mut at = 0;
            for name in path {
                let next = tree.nodes.len();
                at = *tree.nodes[at].children.entry(name).or_insert(next);
                if at == next {
                    tree.nodes.push(Node::default());
                }
                if tree.nodes.len() > NODES_MAX {
                    return Err(
                        "the paths of the profile have too many directories: divide the profile".into()
                    );
                }
            }
            // A name may be absent at first and be read later. So one use must not hide a stronger one.
            match &mut tree.nodes[at].used {
                Some((place, known)) => {
                    if known.join(used) {
                        *place = order;
                    }
                }
                first => *first = Some((order, used)),
            }
        }
        Ok(tree)
    }

    fn used(&self, node: usize) -> Option<&Use> {
        self.nodes[node].used.as_ref().map(|(_, used)| used)
    }

    fn is_directory(&self, node: usize) -> bool {
        !self.nodes[node].children.is_empty() || self.used(node) == Some(&Use::Listed)
    }

    /// The uses at and below a node.
    fn uses(&self, node: usize) -> u64 {
        self.count(node, |_| true)
    }

    /// Those of them that need something to be there.
    fn present(&self, node: usize) -> u64 {
        self.count(node, |used| *used != Use::Absent)
    }

    fn count(&self, node: usize, counts: impl Fn(&Use) -> bool) -> u64 {
        let (mut uses, mut stack) = (0, vec![node]);
        while let Some(at) = stack.pop() {
            uses += u64::from(self.used(at).is_some_and(&counts));
            stack.extend(self.nodes[at].children.values());
        }
        uses
    }
}

/// A directory that is to be brought.
struct Directory {
    node: usize,
    path: Vec<Name>,
    handle: Handle,
}

/// A file or symbolic link that is to be brought.
struct File {
    order: usize,
    path: Vec<Name>,
    place: Place,
    used: Use,
}

/// What a task has brought.
enum Came {
    Names(Directory, vfs::Result<BroughtListing>),
    Name { directory: Handle, node: usize, path: Vec<Name>, found: vfs::Result<Handle> },
    File(Vec<Name>, vfs::Result<Completed>),
}

struct Replay<'a> {
    cache: &'a Arc<Cache>,
    caller: Caller,
    tree: Tree,
    directories: VecDeque<Directory>,
    files: Vec<File>,
    tasks: JoinSet<Came>,
    tally: Tally,
    capacity: u64,
    /// Bytes that earlier parts of the profile name.
    planned_before: u64,
    sink: &'a mut Sink,
}

/// Brings what the lines of a profile name. Earlier parts of the profile name `planned_before` bytes.
pub async fn run(
    cache: &Arc<Cache>,
    lines: Vec<Line>,
    planned_before: u64,
    caller: Caller,
    sink: &mut Sink,
) -> Result<Value, Stop> {
    let uses = lines.len() as u64;
    let tree = Tree::of(lines)?;
    let present = tree.present(0) - u64::from(tree.used(0).is_some());
    let tally = Tally { uses, present, ..Tally::default() };
    let patient = Caller { deadline: Some(Instant::now() + PATIENCE), ..caller.clone() };
    let root = cache.root(&patient).await.map_err(|error| match error.status {
        Status::Delay => silent(),
        status => format!("the origin refuses its root: {status}; see `leasehold status`"),
    })?;
    let mut replay = Replay {
        cache,
        caller,
        tree,
        directories: VecDeque::from([Directory { node: 0, path: Vec::new(), handle: root.handle }]),
        files: Vec::new(),
        tasks: JoinSet::new(),
        tally,
        capacity: cache.totals().await.soft_bytes,
        planned_before,
        sink,
    };
    replay.bring_directories().await?;
    replay.bring_files().await?;
    cache.flush().await;
    // Lines that name a path twice are one use.
    replay.tally.done = replay.tally.uses;
    Ok(replay.tally.to_json())
}

fn silent() -> Stop {
    "the origin does not answer; run this again when it does: what is here already costs no call".to_owned()
}

impl Replay<'_> {
    async fn bring_directories(&mut self) -> Result<(), Stop> {
        loop {
            while self.tasks.len() < AT_A_TIME
                && let Some(directory) = self.directories.pop_front()
            {
                self.begin_directory(directory);
            }
            if !self.wait().await? {
                return Ok(());
            }
        }
    }

    fn begin_directory(&mut self, directory: Directory) {
        let (cache, caller) = (self.cache.clone(), self.caller.clone());
        let children = &self.tree.nodes[directory.node].children;
        let absent = children.values().any(|child| self.tree.used(*child) == Some(&Use::Absent));
        let listed = self.tree.used(directory.node) == Some(&Use::Listed);
        if listed || absent || cache.is_worth_listing(&directory.handle, children.len()) {
            self.tasks.spawn(async move {
                let listing = cache.bring_listing(&caller, &directory.handle).await;
                Came::Names(directory, listing)
            });
            return;
        }
        let children: Vec<_> = children.iter().map(|(name, child)| (name.clone(), *child)).collect();
        for (name, child) in children {
            self.begin_name(directory.handle, child, [&directory.path[..], &[name]].concat());
        }
    }

    /// Looks up the last name of a path.
    fn begin_name(&mut self, directory: Handle, node: usize, path: Vec<Name>) {
        let Some(name) = path.last().cloned() else { return };
        let (cache, caller) = (self.cache.clone(), self.caller.clone());
        self.tasks.spawn(async move {
            let found = cache.bring_name(&caller, &directory, &name).await;
            Came::Name { directory, node, path, found }
        });
    }

    async fn bring_files(&mut self) -> Result<(), Stop> {
        let mut files = std::mem::take(&mut self.files);
        files.sort_by_key(|file| file.order);
        for file in files {
            while self.tasks.len() >= AT_A_TIME {
                self.wait().await?;
            }
            self.plan(&file)?;
            let (cache, caller) = (self.cache.clone(), self.caller.clone());
            self.tasks.spawn(async move {
                let File { path, place, used, .. } = file;
                let came = match used {
                    Use::Linked => {
                        let link = cache.bring_link(&caller, &place.handle).await;
                        link.map(|()| Completed::NoFile)
                    }
                    Use::Read(ranges) => cache.bring_file(&caller, &place, &ranges).await,
                    _ => cache.bring_file(&caller, &place, &[]).await,
                };
                Came::File(path, came)
            });
        }
        while self.wait().await? {}
        Ok(())
    }

    /// Counts the bytes that the cache is to hold of a file, whether they are here or not.
    fn plan(&mut self, file: &File) -> Result<(), Stop> {
        let attributes = self.cache.info(&file.place.handle).attributes;
        let is_wanted = attributes.is_none_or(|known| self.cache.takes(&known));
        if is_wanted && file.used != Use::Linked {
            let size = attributes.map_or(u64::MAX, |known| known.size);
            self.tally.planned = self.tally.planned.saturating_add(planned(&file.used, size));
        }
        let planned = self.planned_before.saturating_add(self.tally.planned);
        if planned <= self.capacity {
            return Ok(());
        }
        Err(format!(
            "no space for {}: up to here the profile names {planned} bytes, and the cleaner starts at {} bytes; \
             raise --cache-size, or cut the profile short",
            show_path(&file.path),
            self.capacity
        ))
    }

    /// Waits for one task to end. False if there is none.
    async fn wait(&mut self) -> Result<bool, Stop> {
        let came = loop {
            match timeout(LOOK_EVERY, self.tasks.join_next()).await {
                Ok(Some(came)) => break came,
                Ok(None) => return Ok(false),
                Err(_) if self.is_silent() => return Err(silent()),
                Err(_) => {}
            }
        };
        match came {
            Ok(Came::Names(directory, Ok(listing))) => self.take_names(&directory, listing),
            Ok(Came::Names(directory, Err(error))) => {
                self.missed(directory.node, &directory.path, error.status).await?;
            }
            Ok(Came::Name { directory, node, path, found: Ok(handle) }) => {
                if let Some(name) = path.last().cloned() {
                    self.take_name(node, path, Place { directory, name, handle });
                }
            }
            Ok(Came::Name { node, path, found: Err(error), .. }) => {
                self.missed(node, &path, error.status).await?;
            }
            Ok(Came::File(path, came)) => self.take_file(&path, came).await?,
            // A task that was aborted or has panicked.
            Err(_) => self.tally.failed += 1,
        }
        let tally = &self.tally;
        self.sink.progress(|| tally.to_json()).await?;
        Ok(true)
    }

    fn is_silent(&self) -> bool {
        let since = self.cache.unanswered_since().and_then(|since| *since.borrow());
        since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    fn take_names(&mut self, directory: &Directory, listing: BroughtListing) {
        self.tally.listings += u64::from(!listing.was_here);
        if directory.node == 0 {
            self.tally.done += u64::from(self.tree.used(0).is_some());
        }
        let children: Vec<_> = self.tree.nodes[directory.node]
            .children
            .iter()
            .map(|(name, child)| (name.clone(), *child))
            .collect();
        let is_complete = listing.is_complete;
        let untold: HashSet<Name> = listing.untold.into_iter().collect();
        let mut places: HashMap<Name, Place> =
            listing.places.into_iter().map(|place| (place.name.clone(), place)).collect();
        for (name, child) in children {
            let path = [&directory.path[..], std::slice::from_ref(&name)].concat();
            match places.remove(&name) {
                Some(place) => self.take_name(child, path, place),
                None if is_complete && !untold.contains(&name) => self.is_gone(child),
                // The origin has not told what the name leads to, or the listing does not end.
                None => self.begin_name(directory.handle, child, path),
            }
        }
    }

    /// A name was found: what is below it, or in it, comes next.
    fn take_name(&mut self, node: usize, path: Vec<Name>, place: Place) {
        if self.tree.is_directory(node) {
            self.tally.done += u64::from(self.tree.used(node).is_some());
            self.directories.push_back(Directory { node, path, handle: place.handle });
            return;
        }
        match self.tree.nodes[node].used.clone() {
            Some((order, used @ (Use::Linked | Use::Opened | Use::Read(_)))) => {
                self.files.push(File { order, path, place, used });
            }
            _ => self.tally.done += 1,
        }
    }

    /// The name leads nowhere. That is as it should be for a name that was absent.
    fn is_gone(&mut self, node: usize) {
        self.tally.gone += self.tree.present(node);
        self.tally.done += self.tree.uses(node);
    }

    /// A directory or name could not be brought, and so nothing below it.
    async fn missed(&mut self, node: usize, path: &[Name], status: Status) -> Result<(), Stop> {
        if is_gone(status) {
            self.is_gone(node);
            return Ok(());
        }
        self.tally.done += self.tree.uses(node);
        self.failed(path, status).await
    }

    async fn failed(&mut self, path: &[Name], status: Status) -> Result<(), Stop> {
        match status {
            Status::Access | Status::NoTicket | Status::Perm => self.tally.denied += 1,
            status => {
                self.tally.failed += 1;
                self.sink.failed(show_path(path).as_bytes(), status).await?;
            }
        }
        Ok(())
    }

    async fn take_file(&mut self, path: &[Name], came: vfs::Result<Completed>) -> Result<(), Stop> {
        self.tally.done += 1;
        match came {
            Ok(Completed::Was | Completed::NoFile) => self.tally.here += 1,
            Ok(Completed::Now(bytes)) => {
                self.tally.fetched += 1;
                self.tally.bytes += bytes;
            }
            // A file that keeps changing is fetched when it is read.
            Ok(Completed::NotWanted | Completed::Stuck) => self.tally.skipped += 1,
            Ok(Completed::Full) => {
                return Err(format!(
                    "no space for {}: the cache is at its limit, or the disk is full; raise --cache-size, \
                     free some space, or cut the profile short",
                    show_path(path)
                ));
            }
            Err(error) if is_gone(error.status) => self.tally.gone += 1,
            Err(error) => self.failed(path, error.status).await?,
        }
        Ok(())
    }
}

/// The bytes that a use takes of a file of this size.
fn planned(used: &Use, size: u64) -> u64 {
    let of = |range: &Range<u64>| range.end.min(size).saturating_sub(range.start);
    match used {
        Use::Read(ranges) => ranges.iter().map(of).fold(0, u64::saturating_add),
        _ => size.min(OPENED_BYTES),
    }
}

/// The path leads nowhere now, or to something else.
fn is_gone(status: Status) -> bool {
    use Status::{BadHandle, Inval, IsDir, NoEnt, NotDir, Stale};
    matches!(status, NoEnt | NotDir | Stale | BadHandle | IsDir | Inval)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: impl IntoIterator<Item = String>) -> Vec<Line> {
        texts.into_iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn paths_become_a_tree_and_the_strongest_use_of_a_path_counts() {
        let texts = [
            "absent /a/b",
            "list /a",
            "read 0+5 /a/b",
            "open /a/b",
            "read 1000000+5 /a/b",
            "look /c",
            "open /c",
            "read 0+9 /c",
            "absent /c",
        ];
        let tree = Tree::of(lines(texts.map(str::to_owned))).unwrap();
        assert_eq!((tree.nodes.len(), tree.uses(0)), (4, 3));
        assert_eq!(tree.nodes[2].used, Some((2, Use::Read(vec![0..5, 1_000_000..1_000_005]))));
        // The place is that of the open.
        assert_eq!(tree.nodes[3].used, Some((6, Use::Read(std::iter::once(0..9).collect()))));
        assert!(tree.is_directory(1) && !tree.is_directory(2) && !tree.is_directory(3));
    }

    #[test]
    fn a_file_takes_no_more_than_its_size() {
        assert_eq!(planned(&Use::Read(vec![0..10, 90..200, 300..400]), 100), 20);
        assert_eq!((planned(&Use::Opened, 100), planned(&Use::Opened, u64::MAX)), (100, OPENED_BYTES));
    }

    #[test]
    fn deep_paths_do_not_fill_the_memory() {
        let deep = |n: usize| format!("look /{n}{}", "/a".repeat(255));
        assert!(Tree::of(lines((0..500).map(deep))).is_ok());
        assert!(Tree::of(lines((0..600).map(deep))).is_err_and(|why| why.contains("too many directories")));
    }
}
