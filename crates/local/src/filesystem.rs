//! The operations, and where each runs: the requesting task answers those that rarely wait; a worker with
//! the caller's identity runs the others.

mod extended;
mod stateful;

use std::os::fd::AsFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::AtFlags;
use rustix::time::ClockId;
use tokio::sync::{oneshot, watch};
use vfs::replay::{self, Made};
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Commit, CreateHow, Created, Data, Device, Error, Features,
    FileSystem, FileType, FsLimits, FsStat, Handle, Listing, Looked, Name, Place, Principal, Read, ReadDir,
    Renamed, Result, SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want,
    Wcc, Written,
};

use crate::change::{self, End, Stop};
use crate::descriptors::Node;
use crate::extents::{self, Reservation};
use crate::io::{self, Wait};
use crate::locks::{HeldLocks, Stripe};
use crate::make::Making;
use crate::opens::DataRight;
use crate::syncs::Target;
use crate::tree::Tree;
use crate::{LocalFs, copy, directory, errno, identity, listings, lookup, syncs, workers};

/// With locks of this many files, a change goes on without further ones.
const LOCKS_MAX: usize = 8;

/// One attempt to make a change.
struct Attempt {
    tree: Arc<Tree>,
    principal: Principal,
}

impl Attempt {
    /// Waits for the locks, runs the job on a worker, and makes the result durable. An attempt whose
    /// requester has gone away while it waited for the locks is not made.
    async fn run<T: Send + 'static>(
        self,
        stripes: Vec<Stripe>,
        job: Arc<
            impl Fn(&Tree, &Principal, HeldLocks) -> Result<(T, Option<Arc<Node>>), Stop> + Send + Sync + 'static,
        >,
    ) -> Result<(T, Result<(), Status>), Stop> {
        let capacity = workers::capacity_to_change().await?;
        let (answer, answered) = oneshot::channel();
        workers::start_task(async move {
            let Attempt { tree, principal } = self;
            let held = tree.locks.hold(&stripes, stripes.len() >= LOCKS_MAX).await;
            workers::on_worker().await;
            if answer.is_closed() {
                return;
            }
            let worn = identity::wear(&principal).map_err(Stop::from);
            let outcome = worn.and_then(|_worn| job(&tree, &principal, held));
            let outcome = match outcome {
                Ok((done, Some(node))) => {
                    let waiter = Box::new(move |synced| {
                        let _ = answer.send(Ok((done, synced)));
                        drop(capacity);
                    });
                    return syncs::persist_then(Target { tree, node, principal }, waiter);
                }
                Ok((done, None)) => Ok((done, Ok(()))),
                Err(stop) => Err(stop),
            };
            drop(tree); // a requester that has its answer may close the directory
            let _ = answer.send(outcome);
            drop(capacity);
        });
        answered.await.unwrap_or(Err(Status::ServerFault.into()))
    }
}

impl LocalFs {
    /// The node of a handle: at once if it is in use, else from a worker.
    async fn node(&self, handle: &Handle) -> Result<Arc<Node>, Status> {
        if let Some(node) = self.tree.cached(handle) {
            return Ok(node);
        }
        let (tree, handle) = (self.tree.clone(), *handle);
        workers::run(Principal::Machine, move || tree.node(&handle)).await
    }

    /// Runs a job that changes nothing on a worker.
    async fn work<T: Send + 'static>(
        &self,
        caller: &Caller,
        job: impl FnOnce(&Tree, &Principal) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (tree, principal) = (self.tree.clone(), caller.principal.clone());
        workers::run(caller.principal.clone(), move || job(&tree, &principal)).await
    }

    /// Runs a change on a worker, with the locks of `files` and of further files that the job needs.
    async fn change<T: Send + 'static>(
        &self,
        caller: &Caller,
        files: &[&Node],
        job: impl Fn(&Tree, &Principal, HeldLocks) -> Result<T, Stop> + Send + Sync + 'static,
    ) -> Result<T, Status> {
        let job = move |tree: &Tree, principal: &Principal, held| Ok((job(tree, principal, held)?, None));
        self.change_names(caller, files, job).await.map(|(done, _)| done)
    }

    /// As `change`, and then makes the directory durable that the job returns, if any. Returns also how that
    /// ended.
    async fn change_names<T: Send + 'static>(
        &self,
        caller: &Caller,
        files: &[&Node],
        job: impl Fn(&Tree, &Principal, HeldLocks) -> Result<(T, Option<Arc<Node>>), Stop> + Send + Sync + 'static,
    ) -> Result<(T, Result<(), Status>), Status> {
        let job = Arc::new(job);
        let mut stripes: Vec<Stripe> =
            files.iter().map(|node| self.tree.locks.stripe(&node.handle)).collect();
        let mut cleared = Vec::new();
        loop {
            let attempt = Attempt { tree: self.tree.clone(), principal: caller.principal.clone() };
            match attempt.run(stripes.clone(), job.clone()).await {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(status)) => return Err(status),
                Err(Stop::Blocked(stripe)) => stripes.push(stripe),
                // No worker and no lock is held during this wait.
                Err(Stop::Out(out)) => cleared.push(out.clear().await),
            }
        }
    }

    /// A failure, with the present attributes of the object.
    fn failed(&self, node: &Node, status: Status) -> Error {
        Error::from(status).with(self.tree.attributes(node))
    }

    /// Makes a name in a directory. The job tells whether the directory may have changed.
    async fn make(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        made: Made<'_>,
        job: impl Fn(Making<'_>) -> Result<(Created, bool), Stop> + Send + Sync + 'static,
    ) -> Result<Created> {
        let node = self.node(directory).await?;
        let (parent, name_made) = (node.clone(), name.clone());
        let done = self
            .change_names(caller, &[&node], move |tree, principal, held| {
                let making = Making { tree, principal, directory: &parent, name: &name_made, held };
                let (created, is_changed) = job(making)?;
                Ok((created, is_changed.then(|| parent.clone())))
            })
            .await;
        match done.and_then(durable) {
            Ok(created) => Ok(created),
            Err(status) if caller.resent => {
                replay::made(self, caller, directory, name, self.failed(&node, status), made).await
            }
            Err(status) => Err(self.failed(&node, status)),
        }
    }

    async fn reserve(&self, caller: &Caller, at: Place, length: u64, what: Reservation) -> Result<Wcc> {
        let node = self.node(&at.handle).await?;
        let right = self.tree.opens.right(at.by, &at.handle, None)?;
        let file = node.clone();
        let done = self
            .change(caller, &[&node], move |tree, principal, held| {
                let range = (at.offset, length);
                Ok(extents::reserve(tree, (principal, right), &file, range, what, held)?)
            })
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    /// Runs a job that moves data between two files, with the target locked.
    async fn between<T: Send + 'static>(
        &self,
        caller: &Caller,
        from: Place,
        to: Place,
        job: impl Fn(&Tree, &Principal, &copy::End<'_>, &copy::End<'_>, HeldLocks) -> Result<T, Status>
        + Send
        + Sync
        + 'static,
    ) -> Result<T> {
        let (source, target) = (self.node(&from.handle).await?, self.node(&to.handle).await?);
        let read = self.tree.opens.right(from.by, &from.handle, None)?;
        let write = self.tree.opens.right(to.by, &to.handle, None)?;
        let changed = target.clone();
        let done = self
            .change(caller, &[&target], move |tree, principal, held| {
                let from = copy::End { node: &source, right: read, offset: from.offset };
                let to = copy::End { node: &changed, right: write, offset: to.offset };
                Ok(job(tree, principal, &from, &to, held)?)
            })
            .await;
        done.map_err(|status| self.failed(&target, status))
    }

    async fn remove_name(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        flags: AtFlags,
    ) -> Result<Wcc> {
        let node = self.node(directory).await?;
        let (parent, name) = (node.clone(), name.clone());
        let done = self
            .change_names(caller, &[&node], move |tree, _, held| {
                Ok((change::remove(tree, &parent, &name, flags, held)?, Some(parent.clone())))
            })
            .await;
        match done.and_then(durable) {
            Ok(wcc) => Ok(wcc),
            Err(status) if caller.resent => {
                replay::removed(self, caller, directory, self.failed(&node, status)).await
            }
            Err(status) => Err(self.failed(&node, status)),
        }
    }
}

/// The result of a change that is durable.
fn durable<T>((done, synced): (T, Result<(), Status>)) -> Result<T, Status> {
    synced.map(|()| done)
}

#[async_trait]
impl FileSystem for LocalFs {
    async fn root(&self, _caller: &Caller) -> Result<vfs::Node> {
        let stat = self.tree.stat(&self.tree.root)?;
        let attributes = Some(stat.attributes(self.tree.root.mount.fsid));
        Ok(vfs::Node { handle: self.tree.root.handle, attributes })
    }

    async fn getattr(&self, _caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let node = self.node(handle).await?;
        Ok(self.tree.stat(&node)?.attributes(node.mount.fsid))
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let node = self.node(handle).await?;
        let (file, wanted, right) = (node.clone(), *set, DataRight::Anonymous(caller.holder));
        let done = self
            .change(caller, &[&node], move |tree, principal, held| {
                change::set_attributes(tree, (principal, right), &file, &wanted, guard, held)
            })
            .await;
        match done {
            Ok(wcc) => Ok(wcc),
            Err(status) if caller.resent => {
                replay::attributes_set(self, caller, handle, set, self.failed(&node, status)).await
            }
            Err(status) => Err(self.failed(&node, status)),
        }
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        let node = self.node(handle).await?;
        let stat = self.tree.stat(&node)?;
        let rights = node.rights(&caller.principal, &stat).map_err(|status| self.failed(&node, status))?;
        Ok(Accessed { granted: rights & asked, attributes: Some(stat.attributes(node.mount.fsid)) })
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _: Want) -> Result<Looked> {
        let node = self.node(directory).await?;
        let found = match lookup::lookup_cached(&self.tree, &caller.principal, &node, name) {
            Ok(Some(looked)) => Ok(looked),
            Ok(None) => {
                let (parent, name) = (node.clone(), name.clone());
                self.work(caller, move |tree, principal| lookup::lookup(tree, principal, &parent, &name))
                    .await
            }
            Err(status) => Err(status),
        };
        found.map_err(|status| self.failed(&node, status))
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        let node = self.node(directory).await?;
        let child = node.clone();
        let found = self.work(caller, move |tree, principal| lookup::parent(tree, principal, &child)).await;
        found.map_err(|status| self.failed(&node, status))
    }

    async fn readlink(&self, _caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let node = self.node(handle).await?;
        let stat = self.tree.stat(&node)?;
        if node.file_type != FileType::Symlink {
            return Err(self.failed(&node, Status::Inval));
        }
        let target = rustix::fs::readlinkat(&node.path, c"", Vec::new())
            .map_err(|errno| self.failed(&node, errno::status(errno)))?;
        Ok((target.into_bytes().into(), Some(stat.attributes(node.mount.fsid))))
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let node = self.node(handle).await?;
        let right = self.tree.opens.right(by, handle, None)?;
        let part = (offset, count);
        let done = match io::read(&self.tree, (&caller.principal, right), &node, part, Wait::No) {
            Ok(None) => {
                let file = node.clone();
                self.work(caller, move |tree, principal| {
                    io::read(tree, (principal, right), &file, part, Wait::Yes)
                })
                .await
            }
            other => other,
        };
        let read =
            done.and_then(|read| read.ok_or(Status::Delay)).map_err(|status| self.failed(&node, status))?;
        if let Data::File(range) = &read.data {
            range.fault_in().await;
        }
        Ok(read)
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let node = self.node(handle).await?;
        let right = self.tree.opens.right(by, handle, None)?;
        let file = node.clone();
        let done = self
            .change(caller, &[&node], move |tree, principal, held| {
                Ok(io::write(tree, (principal, right), &file, (offset, &data), stability, held)?)
            })
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, _offset: u64, _count: u32) -> Result<Commit> {
        let node = self.node(handle).await?;
        let (file, right) = (node.clone(), DataRight::Anonymous(caller.holder));
        let done =
            self.work(caller, move |tree, principal| io::commit(tree, (principal, right), &file)).await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        // The verifier detects a resent exclusive create.
        let resent = caller.resent && !matches!(how, CreateHow::Exclusive(_));
        let caller = Caller { resent, ..caller.clone() };
        let made = Made::Node { file_type: FileType::Regular, set };
        let set = *set;
        let job = move |making: Making<'_>| making.file(how, &set, Share::empty());
        self.make(&caller, directory, name, made, job).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        let made = Made::Node { file_type: FileType::Directory, set };
        let set = *set;
        self.make(caller, directory, name, made, move |making| Ok((making.directory(&set)?, true))).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let made = Made::Symlink { target };
        let (target, set) = (target.to_vec(), *set);
        self.make(caller, directory, name, made, move |making| Ok((making.symlink(&target, &set)?, true)))
            .await
    }

    async fn mknod(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        device: Device,
        set: &SetAttributes,
    ) -> Result<Created> {
        let made = Made::Node { file_type, set };
        let set = *set;
        self.make(caller, directory, name, made, move |making| {
            Ok((making.node(file_type, device, &set)?, true))
        })
        .await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, AtFlags::empty()).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, AtFlags::REMOVEDIR).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let (source, target) = (self.node(from).await?, self.node(to).await?);
        let (parents, names) = ((source.clone(), target.clone()), (from_name.clone(), to_name.clone()));
        let done = self
            .change_names(caller, &[&source, &target], move |tree, _, held| {
                let from = End { directory: &parents.0, name: &names.0 };
                let to = End { directory: &parents.1, name: &names.1 };
                let renamed = change::rename(tree, from, to, held)?;
                if parents.0.handle == parents.1.handle {
                    return Ok((renamed, Some(parents.1.clone())));
                }
                // The new name first: a file without a name would be lost. Both, even if the requester goes
                // away.
                tree.persist_if_sync(&parents.1)?;
                tree.persist_if_sync(&parents.0)?;
                Ok((renamed, None))
            })
            .await;
        match done.and_then(durable) {
            Ok(renamed) => Ok(renamed),
            Err(status) if caller.resent => {
                replay::renamed(self, caller, from, (to, to_name), None, self.failed(&source, status)).await
            }
            Err(status) => Err(self.failed(&source, status)),
        }
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let (linked, parent) = (self.node(file).await?, self.node(directory).await?);
        let (nodes, new_name) = ((linked.clone(), parent.clone()), name.clone());
        let done = self
            .change_names(caller, &[&linked, &parent], move |tree, principal, held| {
                let making = Making { tree, principal, directory: &nodes.1, name: &new_name, held };
                Ok((making.link(&nodes.0)?, Some(nodes.1.clone())))
            })
            .await;
        match done.and_then(durable) {
            Ok(created) => Ok(created),
            Err(status) if caller.resent => {
                let failed = self.failed(&linked, status);
                replay::made(self, caller, directory, name, failed, Made::Link { file }).await
            }
            Err(status) => Err(self.failed(&linked, status)),
        }
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let node = self.node(directory).await?;
        let done = match listings::read_remembered(&self.tree, &caller.principal, &node, &part) {
            Ok(None) => {
                let listed = node.clone();
                self.work(caller, move |tree, principal| directory::read(tree, principal, &listed, part))
                    .await
            }
            Ok(Some(listing)) => Ok(listing),
            Err(status) => Err(status),
        };
        done.map_err(|status| self.failed(&node, status))
    }

    /// Available bytes exclude those reserved for the superuser, for any caller, as in statfs(2) and
    /// Linux's server.
    async fn fsstat(&self, _caller: &Caller, handle: &Handle) -> Result<FsStat> {
        let node = self.node(handle).await?;
        self.tree.stat(&node)?;
        let space = rustix::fs::fstatvfs(node.path.as_fd()).map_err(errno::status)?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        Ok(FsStat {
            total_bytes: bytes(space.f_blocks),
            free_bytes: bytes(space.f_bfree),
            available_bytes: bytes(space.f_bavail),
            total_files: space.f_files,
            free_files: space.f_ffree,
            available_files: space.f_favail,
            invariant_seconds: 0,
        })
    }

    async fn limits(&self, _caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        let node = self.node(handle).await?;
        self.tree.stat(&node)?;
        let space = rustix::fs::fstatvfs(node.path.as_fd()).map_err(errno::status)?;
        // File systems take timestamps from the kernel's coarse clock. (Newer kernels distinguish two
        // changes of a file if its attributes were read in between, but promise nothing for two files.)
        let tick = rustix::time::clock_getres(ClockId::RealtimeCoarse);
        let features = node.mount.features();
        Ok(FsLimits {
            read_max: io::TRANSFER_MAX,
            read_preferred: io::TRANSFER_MAX,
            write_max: io::TRANSFER_MAX,
            write_preferred: io::TRANSFER_MAX,
            name_max: (space.f_namemax as u32).min(Name::MAX as u32),
            time_delta_nanoseconds: tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64,
            features,
            clone_block_bytes: features.contains(Features::CLONE).then_some(space.f_bsize as u32),
            ..FsLimits::default()
        })
    }

    async fn shutdown(&self) {
        self.tree.sync_table();
        self.tree.leases.end_all();
        self.tree.listings.clear();
        self.tree.descriptors.clear();
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    fn prepare_shutdown(&self) {}
}

vfs::lacks!(LocalFs: LocalView);
