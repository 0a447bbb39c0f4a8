//! The origins of a proxy that has several: each has an export, and a cache in a directory of its own.
//!
//! An origin that does not answer, or refuses, is *awaited*: its export is there, and clients are told to
//! come back later. The others do not notice. Origins come and go when the configuration is read again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};
use server::exports::ExportId;
use server::{Export, Front};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use vfs::FileSystem;

use super::origin::{Common, Served, Wanted, reach};
use super::shares::{self, Part};
use crate::admin::{Admin, Caches, Sources};
use crate::holders::{Holders, Listed};
use crate::live::Live;
use crate::metrics::{Awaited, Caching};
use crate::mount::log::notice;
use crate::owner::Incarnation;
use crate::{Failure, stack, status, usage};

/// How long clients of all origins wait for one at the start.
const FIRST_MAX: Duration = Duration::from_secs(2);
/// The longest pause between two attempts at an origin that refuses.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What all origins of the process have in common.
pub struct Site {
    /// The server.
    pub front: Arc<Front>,
    /// Its address.
    pub address: SocketAddr,
    /// The rest.
    pub common: Common,
}

/// See the module.
pub struct Origins {
    site: Site,
    members: RwLock<Vec<Arc<Member>>>,
    /// Origins that are gone, and whose calls had not ended by then.
    stuck: Mutex<HashSet<ExportId>>,
}

/// One origin.
struct Member {
    id: ExportId,
    wanted: RwLock<Wanted>,
    stage: Mutex<Stage>,
    joining: Mutex<Option<JoinHandle<()>>>,
    /// Those of its cache that were set last.
    limits: Mutex<Option<cache::Limits>>,
}

enum Stage {
    Awaited { since: Instant, why: Option<String> },
    Served(Arc<Served>, Option<Admin>),
}

impl Member {
    fn new(wanted: Wanted) -> Arc<Member> {
        let stage = Stage::Awaited { since: Instant::now(), why: None };
        Arc::new(Member {
            id: wanted.id(),
            wanted: RwLock::new(wanted),
            stage: Mutex::new(stage),
            joining: Mutex::default(),
            limits: Mutex::default(),
        })
    }

    fn wanted(&self) -> Wanted {
        self.wanted.read().clone()
    }

    fn served(&self) -> Option<Arc<Served>> {
        match &*self.stage.lock() {
            Stage::Served(served, _) => Some(served.clone()),
            Stage::Awaited { .. } => None,
        }
    }

    /// The origin is not served for this reason. Tells it, if it is news.
    fn note(&self, failure: &Failure) {
        let Stage::Awaited { why, .. } = &mut *self.stage.lock() else { return };
        if why.replace(failure.0.clone()).as_ref() != Some(&failure.0) {
            crate::output::tell(format_args!("{failure}; clients of {} wait", self.wanted.read().path));
        }
    }

    fn status(&self) -> Value {
        let Wanted { url, directory, .. } = self.wanted();
        let mut status = match &*self.stage.lock() {
            Stage::Served(served, _) => served.status(),
            Stage::Awaited { since, why } => json!({
                "origin": url.to_string(),
                "awaited_ms": since.elapsed().as_millis() as u64,
                "why": why,
            }),
        };
        status["directory"] = json!(directory.display().to_string());
        status
    }
}

type Opened = (Served, Arc<dyn FileSystem>);

/// An origin that is being reached.
pub struct Opening {
    wanted: Wanted,
    task: JoinHandle<Result<Opened, Failure>>,
    /// The result of the task, until it is used.
    opened: Option<Result<Opened, Failure>>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Opening {
    /// Begins to reach it.
    pub fn begin(wanted: Wanted, incarnation: Incarnation, common: Common) -> Opening {
        let of = wanted.clone();
        let task = tokio::spawn(async move {
            let origin = reach(&of.url, &incarnation.client).await?;
            Served::open(&of, incarnation, origin, &common).await
        });
        Opening { wanted, task, opened: None }
    }

    async fn finish(&mut self) {
        if self.opened.is_none() {
            let ended = (&mut self.task).await;
            let failed =
                |error| Err(Failure(format!("cannot open the cache of {}: {error}", self.wanted.url)));
            self.opened = Some(ended.unwrap_or_else(failed));
        }
    }

    /// Its export, without a file system if there is none yet.
    fn export(&self) -> Export {
        let Wanted { path, access, .. } = &self.wanted;
        match &self.opened {
            Some(Ok((_, fs))) => Export::new(self.wanted.id(), path.clone(), fs.clone(), access.clone()),
            _ => Export::awaited(self.wanted.id(), path.clone(), access.clone()),
        }
    }
}

/// The exports of these origins. Waits a little for their file systems, so that clients of a proxy that
/// restarts are rarely put off.
pub async fn exports(opening: &mut [Opening]) -> Vec<Export> {
    let all = join_all(opening.iter_mut().map(Opening::finish));
    // Those that have not answered by then are awaited.
    let _ = timeout(FIRST_MAX, all).await;
    opening.iter().map(Opening::export).collect()
}

impl Origins {
    /// Goes on to reach the origins, in the background. Their exports are already there.
    pub fn start(site: Site, opening: Vec<Opening>) -> Arc<Origins> {
        let origins = Arc::new(Origins { site, members: RwLock::default(), stuck: Mutex::default() });
        for one in opening {
            origins.join(one);
        }
        origins
    }

    fn join(self: &Arc<Origins>, opening: Opening) {
        let member = Member::new(opening.wanted.clone());
        self.members.write().push(member.clone());
        let (origins, joining) = (self.clone(), member.clone());
        let task = tokio::spawn(async move { origins.join_until_served(&joining, opening).await });
        *member.joining.lock() = Some(task);
    }

    async fn join_until_served(&self, member: &Arc<Member>, mut opening: Opening) {
        let mut pause = Duration::from_secs(1);
        loop {
            opening.finish().await;
            let failure = match opening.opened.take() {
                Some(Ok(opened)) => return self.serve(member, opened).await,
                Some(Err(failure)) => failure,
                None => Failure(format!("cannot open the cache of {}", opening.wanted.url)),
            };
            member.note(&failure);
            loop {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
                let wanted = member.wanted();
                match Incarnation::begin(&wanted.url, &wanted.directory).await {
                    Ok(incarnation) => {
                        opening = Opening::begin(wanted, incarnation, self.site.common.clone());
                        break;
                    }
                    Err(failure) => member.note(&failure),
                }
            }
        }
    }

    async fn serve(&self, member: &Arc<Member>, (served, fs): Opened) {
        let (served, front) = (Arc::new(served), &self.site.front);
        let admin = self.answer_for(member, &served);
        let admin = admin.map_err(|failure| crate::output::tell(format_args!("{failure}"))).ok();
        *member.stage.lock() = Stage::Served(served, admin);
        front.supply(member.id, fs).await;
        let Wanted { url, path, .. } = member.wanted();
        crate::output::announce(format_args!(
            "proxy of {url} on {}; a client mounts it with: {}",
            self.site.address,
            stack::mount_line(front, self.site.address, &path)
        ));
    }

    /// The admin socket of one origin, in the directory of its cache.
    fn answer_for(&self, member: &Member, served: &Arc<Served>) -> Result<Admin, Failure> {
        let (of, front) = (served.clone(), self.site.front.clone());
        let path = served.caching.export.clone();
        let status = status::source(move || {
            let mut status = of.status();
            status["role"] = json!("proxy");
            status["exports"] = json!([path]);
            status
        });
        let holders = Holders { front, exports: Live::fixed(vec![served.listed.clone()]) };
        let usage = usage::of_server(status.clone(), holders.clone());
        let cache = Caches::One(served.caching.cache.clone());
        let sources = Sources { status, usage, cache, holders: Some(holders), before_recording: None };
        Admin::start(&member.wanted().directory, sources)
    }

    fn served(&self) -> Vec<Arc<Served>> {
        self.members.read().iter().filter_map(|member| member.served()).collect()
    }

    /// The caches and their origins.
    pub fn caching(&self) -> Vec<Caching> {
        self.served().iter().map(|served| served.caching.clone()).collect()
    }

    /// The caches, by directory.
    pub fn caches(&self) -> Vec<(PathBuf, Arc<Cache>)> {
        let of =
            |member: &Arc<Member>| Some((member.wanted().directory, member.served()?.caching.cache.clone()));
        self.members.read().iter().filter_map(of).collect()
    }

    /// What clients hold, by export.
    pub fn listed(&self) -> Vec<Listed> {
        self.served().iter().map(|served| served.listed.clone()).collect()
    }

    /// The origins that are awaited.
    pub fn awaited(&self) -> Vec<Awaited> {
        let of = |member: &Arc<Member>| match &*member.stage.lock() {
            Stage::Awaited { why, .. } => {
                let Wanted { url, path, .. } = member.wanted();
                Some(Awaited { export: path, origin: url.to_string(), why: why.clone() })
            }
            Stage::Served(..) => None,
        };
        self.members.read().iter().filter_map(of).collect()
    }

    /// The state of each origin, by path.
    pub fn status(&self) -> Map<String, Value> {
        self.members.read().iter().map(|member| (member.wanted().path, member.status())).collect()
    }

    /// Divides the disk of the cache among the origins, until it is dropped.
    pub async fn share(&self) {
        loop {
            sleep(shares::EVERY).await;
            self.divide();
        }
    }

    fn divide(&self) {
        let members = self.members.read().clone();
        let of = |member: &Arc<Member>| {
            let used = member.served().map_or(0, |served| served.caching.cache.stats().used_bytes);
            Part { share: member.wanted.read().cache_share, used }
        };
        let parts: Vec<Part> = members.iter().map(of).collect();
        let Some(all) = members.first().map(|member| member.wanted.read().keeping.cache_size) else { return };
        for (member, limit) in members.iter().zip(shares::divide(all, &parts)) {
            let Some(served) = member.served() else { continue };
            let limits = member.wanted.read().limits(limit);
            let before = member.limits.lock().replace(limits);
            if before != Some(limits) {
                served.caching.cache.set_limits(limits);
            }
        }
    }

    /// Checks whether the process can change to these origins.
    ///
    /// # Errors
    /// If it must be restarted for that.
    pub fn check(&self, wanted: &[Wanted]) -> Result<(), Failure> {
        let stuck = self.stuck.lock();
        let Some(wanted) = wanted.iter().find(|wanted| stuck.contains(&wanted.id())) else { return Ok(()) };
        Err(Failure(format!("calls to {} have not ended since it was removed; restart", wanted.url)))
    }

    /// Serves these origins from now on: ends those that are not among them, and begins with the new ones.
    pub async fn change(self: &Arc<Origins>, wanted: Vec<Wanted>) {
        let old = self.members.read().clone();
        for member in old {
            let stays =
                wanted.iter().find(|wanted| wanted.id() == member.id && wanted.path == member.wanted().path);
            let Some(now) = stays else {
                self.withdraw(&member).await;
                continue;
            };
            if let Some(export) = self.site.front.exports().by_id(member.id) {
                export.set_options(now.access.clone());
            }
            // The options of its URL need a restart.
            let mut of = member.wanted.write();
            *of = Wanted { url: of.url.clone(), ..now.clone() };
        }
        for wanted in wanted {
            let is_there = self.members.read().iter().any(|member| member.id == wanted.id());
            if !is_there && let Err(failure) = self.add(wanted).await {
                crate::output::tell(format_args!("{failure}"));
            }
        }
        self.divide();
    }

    async fn add(self: &Arc<Origins>, wanted: Wanted) -> Result<(), Failure> {
        let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
        let opening = Opening::begin(wanted, incarnation, self.site.common.clone());
        self.site.front.add(opening.export()).await.map_err(|error| Failure(error.to_string()))?;
        self.join(opening);
        Ok(())
    }

    /// Ends one origin: what clients hold is given back, and its cache is closed.
    async fn withdraw(&self, member: &Arc<Member>) {
        let joining = member.joining.lock().take();
        if let Some(joining) = joining {
            // An opening ends with its owner: see its `Drop`.
            joining.abort();
            let _ = joining.await;
        }
        self.members.write().retain(|other| !Arc::ptr_eq(other, member));
        let withdrawn = self.site.front.withdraw(member.id).await;
        let url = member.wanted().url;
        if let Err(why) = withdrawn {
            self.stuck.lock().insert(member.id);
            crate::output::tell(format_args!("{url} is not served any more, and {why}"));
        } else {
            notice(&format!("{url} is not served any more"));
        }
    }

    /// Stops to connect, and tells those who ask that the end has begun.
    pub fn begin_end(&self) {
        for member in self.members.read().iter() {
            if let Some(joining) = member.joining.lock().take() {
                joining.abort();
            }
            if let Stage::Served(_, Some(admin)) = &*member.stage.lock() {
                admin.begin_end();
            }
        }
    }

    /// The process is about to exit: the caches are closed.
    pub async fn end(&self) {
        let members = std::mem::take(&mut *self.members.write());
        for member in members {
            let admin = match &mut *member.stage.lock() {
                Stage::Served(_, admin) => admin.take(),
                Stage::Awaited { .. } => None,
            };
            if let Some(admin) = admin {
                admin.end(None).await;
            }
            // The lock stays until the process exits.
            std::mem::forget(member);
        }
    }
}
