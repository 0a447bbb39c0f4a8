//! The origins of a proxy: each has an export, and a cache in a directory of its own.
//!
//! An origin that does not answer, or refuses, is *awaited*: its export is there, and clients are told to
//! come back later. The others do not notice. Origins come and go when the configuration is read again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};
use server::Front;
use server::exports::ExportId;
use tokio::time::sleep;

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
use crate::owner::Incarnation;
use crate::{Failure, stack, status, usage};

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
    /// Origins that are gone, and whose calls had not ended by then.
    stuck: Mutex<HashSet<ExportId>>,
}

impl Origins {
    /// Goes on to reach the origins, in the background. Their exports are already there.
    pub async fn start(site: Site, opening: Vec<Opening>) -> Arc<Origins> {
        let origins = Arc::new(Origins {
            site,
            members: RwLock::default(),
            following: Mutex::default(),
            stuck: Mutex::default(),
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
        let (origins, joining) = (self.clone(), member.clone());
        let task = tokio::spawn(async move { origins.join_until_served(&joining, opening).await });
        *member.joining.lock() = Some(task);
    }

    async fn join_until_served(self: &Arc<Origins>, member: &Arc<Member>, mut opening: Opening) {
        let mut pause = Duration::from_secs(1);
        loop {
            opening.finish().await;
            let failure = match opening.opened.take() {
                Some(Ok(opened)) => {
                    self.serve(member, opened).await;
                    return self.tell(member);
                }
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
        let (referred, old): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|member| member.wanted.read().referred.is_some());
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
        self.adjust_referred(referred).await;
        for wanted in wanted {
            let is_there = self.members.read().iter().any(|member| member.id == wanted.id());
            if !is_there && let Err(failure) = self.add(wanted).await {
                crate::output::tell(format_args!("{failure}"));
            }
        }
        self.divide();
    }

    pub(super) async fn add(self: &Arc<Origins>, wanted: Wanted) -> Result<(), Failure> {
        let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
        let opening = Opening::begin(wanted, incarnation, self.site.common.clone());
        self.site.front.add(opening.export()).await.map_err(|error| Failure(error.to_string()))?;
        self.join(opening);
        Ok(())
    }

    /// Ends one origin: what clients hold is given back, and its cache is closed.
    pub(super) async fn withdraw(&self, member: &Arc<Member>) {
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
