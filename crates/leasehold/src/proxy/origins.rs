//! The origins of a proxy: each has an export, and a cache in a directory of its own.
//!
//! An origin that does not answer, or refuses, is *awaited*: its export is there, and clients are told to
//! come back later. The others do not notice. Origins come and go when the configuration is read again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cache::Cache;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};
use server::Front;
use server::exports::ExportId;
use tokio::time::{sleep, timeout};

use super::member::{Member, Stage};
use super::opening::{Opened, Opening};
use super::origin::{Common, Served, Wanted};
use super::referrals::{Following, Referrals};
use super::shares::{self, Part};
use crate::admin::{Admin, Caches, Sources};
use crate::holders::{Holders, Listed};
use crate::live::Live;
use crate::metrics::{Awaited, Caching};
use crate::mount::log::notice;
use crate::{Failure, stack, status, usage};

/// How long the end waits for an origin that was just reached.
const JOINED_MAX: Duration = Duration::from_secs(5);
/// The longest pause between two attempts at an origin that refuses.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What all origins of the process have in common.
pub struct Site {
    /// The server.
    pub front: Arc<Front>,
    /// Its address.
    pub address: SocketAddr,
    /// The directory of the proxy.
    pub directory: PathBuf,
    /// Of referrals.
    pub referrals: Referrals,
    /// The rest.
    pub common: Common,
}

/// See the module.
pub struct Origins {
    pub(super) site: Site,
    pub(super) members: RwLock<Vec<Arc<Member>>>,
    pub(super) following: Mutex<Following>,
    /// Origins that are gone, and whose calls had not ended by then. Their directories stay locked.
    stuck: Mutex<HashMap<ExportId, Option<Arc<Served>>>>,
    /// The record of referrals is written by one task at a time.
    pub(super) recording: Mutex<()>,
    /// The process ends: nothing begins any more.
    pub(super) ending: AtomicBool,
}

impl Origins {
    /// Goes on to reach the origins, in the background. Their exports are already there.
    pub async fn start(site: Site, opening: Vec<Opening>) -> Arc<Origins> {
        let origins = Arc::new(Origins {
            site,
            members: RwLock::default(),
            following: Mutex::default(),
            stuck: Mutex::default(),
            recording: Mutex::default(),
            ending: AtomicBool::new(false),
        });
        for mut one in opening {
            match one.opened.take() {
                Some(Ok(opened)) => {
                    let member = Member::new(one.wanted.clone());
                    origins.members.write().push(member.clone());
                    origins.serve(&member, opened).await;
                }
                opened => {
                    one.opened = opened;
                    origins.join(one);
                }
            }
        }
        origins
    }

    /// Says how clients mount what is served by now.
    pub fn announce(&self) {
        self.members.read().iter().filter(|member| member.served().is_some()).for_each(|it| self.tell(it));
    }

    /// Says how clients mount an origin. The proxy itself does for the only one.
    fn tell(&self, member: &Member) {
        let (Wanted { url, path, directory, .. }, Site { front, address, .. }) =
            (member.wanted(), &self.site);
        if directory != self.site.directory {
            crate::output::announce(format_args!(
                "proxy of {url} on {address}; a client mounts it with: {}",
                stack::mount_line(front, *address, &path)
            ));
        }
    }

    fn join(self: &Arc<Origins>, opening: Opening) {
        let member = Member::new(opening.wanted.clone());
        self.members.write().push(member.clone());
        self.join_with(&member, async { opening });
    }

    /// Reaches the origin of another virtual server when a client asks for it. Its export is there. If an
    /// earlier process was asked, begins at once: that may have left delayed writes here, or leases there.
    pub fn join_when_asked(self: &Arc<Origins>, wanted: Wanted) {
        let Some(export) = self.site.front.exports().by_id(wanted.id()) else { return };
        let was_asked = wanted.has_been_used();
        let member = if was_asked { Member::new(wanted) } else { Member::unasked(wanted) };
        self.members.write().push(member.clone());
        let (asked, common) = (member.clone(), self.site.common.clone());
        self.join_with(&member, async move {
            if !was_asked {
                export.is_asked_for().await;
                asked.ask();
            }
            Opening::begin(asked.wanted(), common)
        });
    }

    fn join_with(
        self: &Arc<Origins>,
        member: &Arc<Member>,
        opening: impl Future<Output = Opening> + Send + 'static,
    ) {
        let (origins, joining) = (self.clone(), member.clone());
        let task = tokio::spawn(async move {
            let mut leaves = joining.leaves.subscribe();
            // An origin that was reached must be served, so that it can be shut down.
            let opened = tokio::select! {
                opened = async { origins.join_until_opened(&joining, opening.await).await } => opened,
                _ = leaves.wait_for(|leaves| *leaves) => return,
            };
            origins.serve(&joining, opened).await;
            origins.tell(&joining);
        });
        *member.joining.lock() = Some(task);
    }

    async fn join_until_opened(&self, member: &Arc<Member>, mut opening: Opening) -> Opened {
        let mut pause = Duration::from_secs(1);
        loop {
            opening.finish().await;
            let failure = match opening.opened.take() {
                Some(Ok(opened)) => return opened,
                Some(Err(failure)) => failure,
                None => Failure(format!("cannot open the cache of {}", opening.wanted.url)),
            };
            member.note(&failure);
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
            opening = Opening::begin(member.wanted(), self.site.common.clone());
        }
    }

    async fn serve(self: &Arc<Origins>, member: &Arc<Member>, (served, fs): Opened) {
        let (served, front) = (Arc::new(served), &self.site.front);
        // The only origin has the admin socket of the proxy.
        let admin = if member.wanted().directory == self.site.directory {
            None
        } else {
            let admin = self.answer_for(member, &served);
            admin.map_err(|failure| crate::output::tell(format_args!("{failure}"))).ok()
        };
        *member.stage.lock() = Stage::Served(served.clone(), admin);
        self.divide();
        self.follow_referrals_of(member, &served);
        front.supply(member.id, fs).await;
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
        let sources =
            Sources { status, usage, cache, holders: Some(holders), cluster: None, before_recording: None };
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
                let wanted = member.wanted();
                let (is_elsewhere, origin) = (wanted.is_elsewhere(), wanted.url.to_string());
                Some(Awaited { export: wanted.path, is_elsewhere, origin, why: why.clone() })
            }
            Stage::Served(..) | Stage::Unasked => None,
        };
        self.members.read().iter().filter_map(of).collect()
    }

    /// The state of each origin, by path.
    pub fn status(&self) -> Map<String, Value> {
        self.members.read().iter().map(|member| (member.wanted().path, member.status())).collect()
    }

    /// The state of the first one.
    pub fn first_status(&self) -> Option<Value> {
        self.members.read().first().map(|member| member.status())
    }

    /// Divides the disk of the cache among the origins, until it is dropped.
    pub async fn share(self: Arc<Origins>) {
        loop {
            sleep(shares::EVERY).await;
            self.divide();
        }
    }

    fn divide(&self) {
        let mut members = self.members.read().clone();
        members.retain(|member| member.is_asked_for());
        let of = |member: &Arc<Member>| {
            // The cache of an origin that is awaited may be full.
            let used = member.served().map_or(u64::MAX, |served| served.caching.cache.stats().used_bytes);
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
        let Some(wanted) = wanted.iter().find(|wanted| stuck.contains_key(&wanted.id())) else {
            return Ok(());
        };
        Err(Failure(format!("calls to {} have not ended since it was removed; restart", wanted.url)))
    }

    /// Options of exports and limits of caches are those of these origins from now on. The options of URLs
    /// need a restart.
    pub fn apply(&self, wanted: &[Wanted]) {
        for member in self.members.read().iter() {
            let Some(now) = wanted.iter().find(|wanted| is_of(wanted, member)) else { continue };
            if let Some(export) = self.site.front.exports().by_id(member.id) {
                export.set_options(now.access.clone());
            }
            let mut of = member.wanted.write();
            *of = Wanted { url: of.url.clone(), ..now.clone() };
        }
        self.divide();
    }

    /// Serves these origins from now on: ends those that are not among them, and begins with the new ones.
    pub async fn change(self: &Arc<Origins>, wanted: Vec<Wanted>) {
        let old = self.members.read().clone();
        let (referred, old): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|member| member.wanted.read().referred.is_some());
        for member in old {
            if !wanted.iter().any(|wanted| is_of(wanted, &member)) {
                self.withdraw(&member).await;
            }
        }
        self.adjust_referred(referred, &wanted).await;
        for wanted in wanted {
            let is_there = self.members.read().iter().any(|member| member.id == wanted.id());
            if !is_there && let Err(failure) = self.add(wanted).await {
                crate::output::tell(format_args!("{failure}"));
            }
        }
        self.divide();
    }

    pub(super) async fn add(self: &Arc<Origins>, wanted: Wanted) -> Result<(), Failure> {
        if self.stuck.lock().contains_key(&wanted.id()) {
            return Err(Failure(format!(
                "calls to {} have not ended since it was removed; restart",
                wanted.url
            )));
        }
        if self.ending.load(Ordering::Relaxed) {
            return Err(Failure(format!("{} is not served any more: the proxy ends", wanted.url)));
        }
        let opening = Opening::begin(wanted, self.site.common.clone());
        self.site.front.add(opening.export()).await.map_err(|error| Failure(error.to_string()))?;
        self.join(opening);
        Ok(())
    }

    /// Ends one origin: what clients hold is given back, and its cache is closed.
    pub(super) async fn withdraw(&self, member: &Arc<Member>) {
        member.leaves.send_replace(true);
        let joining = member.joining.lock().take();
        if let Some(joining) = joining {
            let _ = joining.await;
        }
        self.members.write().retain(|other| !Arc::ptr_eq(other, member));
        let withdrawn = self.site.front.withdraw(member.id).await;
        let url = member.wanted().url;
        // Others who have the member keep neither its lock nor its socket.
        let served = member.leave();
        if let Err(why) = withdrawn {
            self.stuck.lock().insert(member.id, served);
            crate::output::tell(format_args!("{url} is not served any more, and {why}"));
        } else {
            notice(&format!("{url} is not served any more"));
        }
    }

    /// Stops to connect, and tells those who ask that the end has begun. An origin that was reached is served
    /// by then, so that it is shut down.
    pub async fn begin_end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let members = self.members.read().clone();
        for member in members {
            member.leaves.send_replace(true);
            let joining = member.joining.lock().take();
            if let Some(joining) = joining {
                let _ = timeout(JOINED_MAX, joining).await;
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
                Stage::Awaited { .. } | Stage::Unasked => None,
            };
            if let Some(admin) = admin {
                admin.end(None).await;
            }
            // The lock stays until the process exits.
            std::mem::forget(member);
        }
    }
}

/// Does the configuration mean this origin?
fn is_of(wanted: &Wanted, member: &Member) -> bool {
    wanted.id() == member.id && wanted.path == member.wanted.read().path
}
