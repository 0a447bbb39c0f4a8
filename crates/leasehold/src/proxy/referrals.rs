//! Referrals of origins (RFC 8881, section 11.4; Nache, section 5.4). The proxy serves the place to which an
//! origin refers as one more origin, at the path of the referral. So its clients see one tree.
//!
//! A client meets a referral with a LOOKUP and is told to come back later; by then the export is there. It
//! stays there over a restart, because clients have handles of it. Every minute the origin is asked whether
//! it still refers there. Loops and depth are bounded: no place is served twice, and [`DEPTH_MAX`] referrals
//! in a row are followed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::{Location, Referral, Url};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use server::exports::{self, ExportId};
use server::{Export, Locations};
use tokio::time::{Instant, sleep, timeout};
use vfs::{Caller, FileSystem, Handle, Name, NullFileSystem, Status, Want};

use super::member::Member;
use super::origin::{Referred, Served, Wanted};
use super::origins::Origins;
use super::{CACHES, MEMORY_PART};
use crate::Failure;
use crate::cli::ReferralAnswer;
use crate::config::origins::ORIGINS_MAX;
use crate::mount::log::notice;

/// Bytes of the name of a host.
const HOST_MAX_BYTES: usize = 255;
/// The port of NFS.
const NFS_PORT: u16 = 2049;
/// The most referrals in a row that are followed.
const DEPTH_MAX: usize = 8;
/// How long the answer to such a question may take.
const ASK_MAX: Duration = Duration::from_secs(5);
/// How often origins are asked whether they still refer to the same place.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// Refusals to follow that are remembered, so that each is told once.
const TOLD_MAX: usize = 1000;

/// The treatment of referrals, and the record of those that are followed.
pub struct Referrals {
    /// `--referrals`
    pub answer: ReferralAnswer,
    /// The directory of the record.
    pub state: PathBuf,
}

/// Referrals that are being followed, or were not.
#[derive(Debug, Default)]
pub struct Following {
    /// The paths at which an origin is being added.
    adding: HashSet<String>,
    /// The paths of referrals that are handed on, and the URLs of the origins that refer.
    handed_on: HashMap<String, String>,
    /// The paths at which nothing could be added lately.
    refused: HashMap<String, Instant>,
    told: HashSet<String>,
}

/// A line of the record.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    path: String,
    url: String,
    by: String,
}

/// The name of the record.
const RECORD: &str = "referrals.json";

impl Referrals {
    /// The origins that an earlier process had found from these, and whose clients may still have handles.
    pub fn recorded(&self, directory: &Path, wanted: &[Wanted]) -> Vec<Wanted> {
        let mut found: Vec<Wanted> = Vec::new();
        if self.answer != ReferralAnswer::Follow {
            return found;
        }
        for Recorded { path, url, by } in read(&self.state.join(RECORD)) {
            let is_taken = |one: &Wanted| one.path == path || one.url.to_string() == url;
            let all = || wanted.iter().chain(&found);
            let parent = all().find(|one| one.url.to_string() == by).cloned();
            if all().count() < ORIGINS_MAX
                && !all().any(is_taken)
                && let Some(parent) = parent
                && let Ok(url) = Url::parse(&url)
                && let Ok(wanted) = referred(&parent, &path, url, directory)
            {
                found.push(wanted);
            }
        }
        found
    }

    fn write(&self, records: &[Recorded]) -> io::Result<()> {
        let (path, new) = (self.state.join(RECORD), self.state.join("referrals.new"));
        std::fs::write(&new, serde_json::to_vec(records)?)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)
    }
}

/// The record; empty if there is none. What cannot be read is found again by the next LOOKUP.
fn read(path: &Path) -> Vec<Recorded> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The origin to which `parent` refers at this path.
///
/// # Errors
/// If it must not be followed.
fn referred(parent: &Wanted, path: &str, url: Url, directory: &Path) -> Result<Wanted, Failure> {
    let by = parent.url.to_string();
    let depth = parent.referred.as_ref().map_or(0, |referred| referred.depth) + 1;
    if depth > DEPTH_MAX {
        return Err(Failure(format!(
            "{by} refers to {url} for {path}, and {DEPTH_MAX} referrals lead there already; it is not followed"
        )));
    }
    let mut options = parent.url.options.clone();
    (options.port, options.mountport) = (None, None);
    let url = Url { options, ..url };
    Ok(Wanted {
        directory: directory.join(CACHES).join(Wanted::directory_name(&url)),
        url,
        path: path.to_owned(),
        access: parent.access.clone(),
        keeping: parent.keeping.of_one_among(MEMORY_PART, None),
        writing: parent.writing,
        cache_share: 1,
        among_others: true,
        referred: Some(Referred { by, depth }),
    })
}

/// The URL of a location; none if it is none that can be served.
fn url_of(location: &Location) -> Option<Url> {
    let host = std::str::from_utf8(&location.host).ok()?;
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-' | b'_');
    let is_host = host.bytes().all(is_of_host) && host.bytes().any(|byte| byte.is_ascii_alphanumeric());
    let is_name = |name: &Vec<u8>| Name::new(name).is_ok();
    if !is_host || host.len() > HOST_MAX_BYTES || !location.path.iter().all(is_name) {
        return None;
    }
    let mut export: Vec<u8> = location.path.iter().flat_map(|name| [&b"/"[..], name].concat()).collect();
    if export.is_empty() {
        export.push(b'/');
    }
    let options = Url::parse("nfs://host/").ok()?.options;
    Some(Url { host: host.to_owned(), port: None, export, options })
}

/// The path of names below the path of an export; none if clients could not name it.
fn path_below<'n>(export: &str, names: impl Iterator<Item = &'n [u8]>) -> Option<String> {
    let mut path = export.trim_end_matches('/').to_owned();
    for name in names {
        path.push('/');
        path.push_str(std::str::from_utf8(name).ok()?);
    }
    Some(path)
}

impl Origins {
    /// From now on, referrals of this origin are answered as `--referrals` says.
    pub(super) fn follow_referrals_of(self: &Arc<Origins>, member: &Arc<Member>, served: &Arc<Served>) {
        if self.site.referrals.answer == ReferralAnswer::Report {
            return;
        }
        let (origins, member) = (Arc::downgrade(self), Arc::downgrade(member));
        let follow = move |referral| match (origins.upgrade(), member.upgrade()) {
            (Some(origins), Some(member)) => origins.is_followed(&member, &referral),
            _ => false,
        };
        served.caching.origin.follow_referrals(Arc::new(follow));
    }

    /// Takes a referral of this origin. True if a client that comes back later finds the place.
    fn is_followed(self: &Arc<Origins>, by: &Arc<Member>, referral: &Referral) -> bool {
        let Some(served) = by.served() else { return false };
        let Some(above) = served.caching.cache.path_of(&referral.directory) else { return false };
        let names = above.iter().map(Name::as_bytes).chain(referral.names.iter().map(Vec::as_slice));
        let parent = by.wanted();
        let Some(path) = path_below(&parent.path, names) else { return false };
        if let Some(member) = self.at(&path) {
            self.replace_if_moved(&member, &referral.locations);
            return true;
        }
        let new = match self.site.referrals.answer {
            ReferralAnswer::Report => return false,
            ReferralAnswer::Pass => return self.is_handed_on(&parent, path, &referral.locations),
            ReferralAnswer::Follow => self.to_follow(&parent, &path, &referral.locations),
        };
        match new {
            Ok(wanted) => {
                let refused = self.following.lock().refused.get(&path).copied();
                if refused.is_some_and(|at| at.elapsed() < ASK_EVERY) {
                    return false;
                }
                self.begin_to_follow(wanted);
            }
            Err(failure) => {
                let mut following = self.following.lock();
                if following.told.len() < TOLD_MAX && following.told.insert(failure.0.clone()) {
                    notice(&failure.0);
                }
                return false;
            }
        }
        true
    }

    fn at(&self, path: &str) -> Option<Arc<Member>> {
        self.members.read().iter().find(|member| member.wanted.read().path == path).cloned()
    }

    /// The origin at the first location that can be served.
    fn to_follow(&self, parent: &Wanted, path: &str, locations: &[Location]) -> Result<Wanted, Failure> {
        let by = &parent.url;
        let members = self.members.read();
        if members.len() + self.following.lock().adding.len() >= ORIGINS_MAX {
            return Err(Failure(format!(
                "{by} refers us elsewhere for {path}, and there are {ORIGINS_MAX} origins already; it is not followed"
            )));
        }
        let mut why = Failure(format!("{by} refers us elsewhere for {path}, and does not say where"));
        for url in locations.iter().filter_map(url_of) {
            let wanted = match referred(parent, path, url, &self.site.directory) {
                Ok(wanted) => wanted,
                Err(failure) => {
                    why = failure;
                    continue;
                }
            };
            match members.iter().find(|member| is_same_place(&member.wanted.read().url, &wanted.url)) {
                None => return Ok(wanted),
                Some(other) => {
                    why = Failure(format!(
                        "{by} refers to {} for {path}, which is served at {} already; it is not followed",
                        wanted.url,
                        other.wanted.read().path
                    ));
                }
            }
        }
        Err(why)
    }

    fn begin_to_follow(self: &Arc<Origins>, wanted: Wanted) {
        if !self.following.lock().adding.insert(wanted.path.clone()) {
            return;
        }
        let origins = self.clone();
        tokio::spawn(async move {
            let path = wanted.path.clone();
            let told = format!("{} is followed to {}, at {path}", by(&wanted), wanted.url);
            match origins.add(wanted).await {
                Ok(()) => {
                    origins.take_access(&path);
                    notice(&told);
                }
                Err(failure) => {
                    let mut following = origins.following.lock();
                    if following.refused.len() >= TOLD_MAX {
                        following.refused.clear();
                    }
                    following.refused.insert(path.clone(), Instant::now());
                    notice(&failure.0);
                }
            }
            origins.following.lock().adding.remove(&path);
            origins.record();
        });
    }

    /// The options of the origin that refers may have changed meanwhile.
    fn take_access(&self, path: &str) {
        let Some(member) = self.at(path) else { return };
        let by = member.wanted().referred.map(|referred| referred.by);
        let members = self.members.read().clone();
        let parent = members.iter().find(|other| Some(other.wanted.read().url.to_string()) == by);
        if let (Some(parent), Some(export)) = (parent, self.site.front.exports().by_id(member.id)) {
            let access = parent.wanted.read().access.clone();
            export.set_options(access.clone());
            member.wanted.write().access = access;
        }
    }

    /// Sends clients of version 4 to the locations. True the first time: then they come back and find them.
    fn is_handed_on(self: &Arc<Origins>, by: &Wanted, path: String, locations: &[Location]) -> bool {
        let Some(refer) = to_refer(locations) else { return false };
        {
            let mut following = self.following.lock();
            let by = by.url.to_string();
            // Only version 4 has a word for it.
            if following.handed_on.len() >= ORIGINS_MAX
                || following.handed_on.insert(path.clone(), by).is_some()
            {
                return false;
            }
        }
        let options = server::ExportOptions { refer, ..by.access.clone() };
        let id = handed_on_id(&path);
        let (origins, nothing) = (self.clone(), Arc::new(NullFileSystem));
        tokio::spawn(async move {
            let export = Export::new(id, path, nothing, options);
            if let Err(error) = origins.site.front.add(export).await {
                notice(&error.to_string());
            }
        });
        true
    }

    /// The origin refers to other locations than before: the new one takes the place of the old one.
    fn replace_if_moved(self: &Arc<Origins>, member: &Arc<Member>, locations: &[Location]) {
        let wanted = member.wanted();
        let here = &wanted.url;
        let is_here = |location: &Location| url_of(location).is_some_and(|url| is_same_place(&url, here));
        if wanted.referred.is_none() || locations.is_empty() || locations.iter().any(is_here) {
            return;
        }
        // An origin that never says the same twice does not keep us busy.
        if member.since.elapsed() > ASK_EVERY {
            self.begin_to_withdraw(member.clone());
        }
    }

    fn begin_to_withdraw(self: &Arc<Origins>, member: Arc<Member>) {
        let origins = self.clone();
        tokio::spawn(async move {
            origins.withdraw(&member).await;
            origins.record();
        });
    }

    /// Records the origins that were found by referrals.
    fn record(&self) {
        let _one_at_a_time = self.recording.lock();
        if self.ending.load(Ordering::Relaxed) {
            // The members leave, and stay recorded.
            return;
        }
        let of = |member: &Arc<Member>| {
            let Wanted { path, url, referred, .. } = member.wanted();
            Some(Recorded { path, url: url.to_string(), by: referred?.by })
        };
        let records: Vec<Recorded> = self.members.read().iter().filter_map(of).collect();
        if let Err(error) = self.site.referrals.write(&records) {
            notice(&format!("the record of referrals cannot be written: {error}; free some space"));
        }
    }

    /// The configuration has changed to these origins. Those that were found by referrals follow the ones
    /// that refer to them.
    pub(super) async fn adjust_referred(&self, mut referred: Vec<Arc<Member>>, wanted: &[Wanted]) {
        // Those that refer come first.
        referred.sort_by_key(|member| member.wanted.read().referred.as_ref().map_or(0, |it| it.depth));
        for member in referred {
            let now = member.wanted();
            let members = self.members.read().clone();
            let parent = members.iter().find(|other| {
                let other = other.wanted.read();
                now.referred.as_ref().is_some_and(|it| it.by == other.url.to_string())
                    && now
                        .path
                        .strip_prefix(other.path.trim_end_matches('/'))
                        .is_some_and(|it| it.starts_with('/'))
            });
            // The configuration may name an origin at that path, or that one at another.
            let is_taken = |other: &Wanted| other.path == now.path || other.id() == member.id;
            let Some(parent) = parent.filter(|_| !wanted.iter().any(is_taken)) else {
                self.withdraw(&member).await;
                continue;
            };
            let Wanted { access, keeping, .. } = parent.wanted();
            if let Some(export) = self.site.front.exports().by_id(member.id) {
                export.set_options(access.clone());
            }
            let mut of = member.wanted.write();
            (of.access, of.keeping) = (access, keeping.of_one_among(MEMORY_PART, None));
        }
        self.record();
    }

    /// Asks the origins now and then whether they still refer to the same places.
    pub async fn ask_about_referrals(self: Arc<Origins>) {
        loop {
            sleep(ASK_EVERY).await;
            self.ask_now().await;
        }
    }

    /// Asks the origins whether they still refer to the same places.
    pub async fn ask_now(self: &Arc<Origins>) {
        let members = self.members.read().clone();
        let referred = members.into_iter().filter(|member| member.wanted.read().referred.is_some());
        let asked = referred.map(|member| async move {
            let Wanted { path, referred, .. } = member.wanted();
            let by = referred.map(|referred| referred.by).unwrap_or_default();
            if self.is_over(&path, &by).await == Some(true) {
                self.begin_to_withdraw(member);
            }
        });
        join_all(asked).await;
        let handed_on = self.following.lock().handed_on.clone();
        for (path, by) in handed_on {
            if self.is_over(&path, &by).await == Some(true) {
                let _ = self.site.front.withdraw(handed_on_id(&path)).await;
                self.following.lock().handed_on.remove(&path);
            }
        }
    }

    /// Does the origin with this URL not refer to this path any more? None if it does not say.
    async fn is_over(&self, path: &str, by: &str) -> Option<bool> {
        let members = self.members.read().clone();
        let Some(parent) = members.iter().find(|other| other.wanted.read().url.to_string() == by) else {
            return Some(true);
        };
        let (above, served) = (parent.wanted().path, parent.served()?);
        drop(members);
        timeout(ASK_MAX, refers_no_more(&above, path, &served)).await.ok()?
    }
}

/// Does the origin at the path `above` not refer to this path any more? None if it does not say.
async fn refers_no_more(above: &str, path: &str, served: &Served) -> Option<bool> {
    let names = path.strip_prefix(above.trim_end_matches('/'))?.split('/').filter(|name| !name.is_empty());
    let names: Option<Vec<Name>> = names.map(|name| Name::new(name.as_bytes()).ok()).collect();
    let names = names?;
    let (last, above) = names.split_last()?;
    let (me, cache) = (Caller::machine(), &served.caching.cache);
    let mut at: Handle = cache.root(&me).await.ok()?.handle;
    for name in above {
        match cache.lookup(&me, &at, name, Want::None).await {
            Ok(looked) => at = looked.node.handle,
            Err(error) => return is_not_there(error.status),
        }
    }
    match served.caching.origin.lookup(&me, &at, last, Want::None).await {
        Ok(_) => Some(true),
        Err(error) => is_not_there(error.status),
    }
}

fn handed_on_id(path: &str) -> ExportId {
    ExportId::of(&format!("referral at {path}"))
}

/// Do these URLs lead to the same export? A server with two names is not recognized; [`DEPTH_MAX`] ends a
/// loop of such.
fn is_same_place(one: &Url, other: &Url) -> bool {
    let port = |url: &Url| url.options.port.or(url.port).unwrap_or(NFS_PORT);
    one.host.eq_ignore_ascii_case(&other.host) && port(one) == port(other) && one.export == other.export
}

fn is_not_there(status: Status) -> Option<bool> {
    matches!(status, Status::NoEnt | Status::NotDir | Status::Stale).then_some(true)
}

fn by(wanted: &Wanted) -> String {
    wanted.referred.as_ref().map(|referred| format!("a referral of {}", referred.by)).unwrap_or_default()
}

/// The locations, as an export of this server has them.
fn to_refer(locations: &[Location]) -> Option<Locations> {
    let place = |location: &Location| {
        let url = url_of(location)?;
        let path = location
            .path
            .iter()
            .map(|name| String::from_utf8(name.clone()).ok())
            .collect::<Option<Vec<String>>>();
        Some(exports::Location { path: path?, hosts: vec![url.host] })
    };
    let places: Vec<exports::Location> = locations.iter().filter_map(place).collect();
    if places.is_empty() { None } else { Locations::of(places) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::cache::Keeping;
    use crate::cli::writing::Writing;

    fn wanted(url: &str, path: &str) -> Wanted {
        Wanted {
            url: Url::parse(url).unwrap(),
            path: path.into(),
            directory: "/cache".into(),
            access: server::ExportOptions { read_only: true, ..server::ExportOptions::default() },
            keeping: Keeping::default(),
            writing: Writing::default(),
            cache_share: 2,
            among_others: false,
            referred: None,
        }
    }

    #[test]
    fn a_place_has_the_options_of_the_origin_that_refers_to_it_but_for_its_port() {
        let parent = wanted("nfs://a:77/x?vers=4.1&timeo=50&mountport=9", "/x");
        let url = |text: &str| Url::parse(text).unwrap();
        let found = referred(&parent, "/x/d", url("nfs://b/y"), Path::new("/cache")).unwrap();
        assert_eq!((found.url.to_string().as_str(), found.url.port), ("nfs://b/y", None));
        assert_eq!(found.url.options.timeo, parent.url.options.timeo);
        assert!(found.url.options.mountport.is_none() && found.access.read_only && found.among_others);
        assert!(
            found.directory.to_str().unwrap().starts_with("/cache/origins/b_y-"),
            "{:?}",
            found.directory
        );
        assert_eq!(found.referred, Some(Referred { by: "nfs://a:77/x".into(), depth: 1 }));
        let mut last = found;
        for depth in 2..=DEPTH_MAX {
            last = referred(&last, "/x/d", url(&format!("nfs://b/{depth}")), Path::new("/")).unwrap();
        }
        let refused = referred(&last, "/x/d", url("nfs://b/z"), Path::new("/")).unwrap_err();
        assert!(refused.0.contains("8 referrals lead there already"), "{}", refused.0);
    }

    #[test]
    fn places_survive_a_restart_as_long_as_somebody_refers_to_them() {
        let state = tempfile::tempdir().unwrap();
        let of = |answer| Referrals { answer, state: state.path().to_owned() };
        let follow = of(ReferralAnswer::Follow);
        let record =
            |path: &str, url: &str, by: &str| Recorded { path: path.into(), url: url.into(), by: by.into() };
        assert!(follow.recorded(Path::new("/c"), &[wanted("nfs://a/x", "/x")]).is_empty());
        let records = [
            record("/x/d", "nfs://b/y", "nfs://a/x"),
            record("/x/d/e", "nfs://c/z", "nfs://b/y"),
            record("/x/other", "nfs://a/x", "nfs://a/x"),
            record("/gone/f", "nfs://d/", "nfs://gone/"),
        ];
        follow.write(&records).unwrap();
        let found = follow.recorded(Path::new("/c"), &[wanted("nfs://a/x", "/x")]);
        let paths: Vec<&str> = found.iter().map(|wanted| wanted.path.as_str()).collect();
        assert_eq!(paths, ["/x/d", "/x/d/e"]);
        assert_eq!(found[1].referred.as_ref().unwrap().depth, 2);
        assert!(
            of(ReferralAnswer::Report).recorded(Path::new("/c"), &[wanted("nfs://a/x", "/x")]).is_empty()
        );
        std::fs::write(state.path().join(RECORD), b"damage").unwrap();
        assert!(follow.recorded(Path::new("/c"), &[wanted("nfs://a/x", "/x")]).is_empty());
    }

    #[test]
    fn a_location_is_taken_as_it_is_or_not_at_all() {
        let at = |host: &[u8], path: &[&[u8]]| Location {
            host: host.to_vec(),
            path: path.iter().map(|name| name.to_vec()).collect(),
        };
        let url = |location: &Location| url_of(location).map(|url| url.to_string());
        let odd = at(b"b", &["donn\u{e9}es".as_bytes(), b"100%", b"a?b@c:d"]);
        assert_eq!(url_of(&odd).unwrap().export, "/donn\u{e9}es/100%/a?b@c:d".as_bytes());
        assert_eq!(Url::parse(&url(&odd).unwrap()).unwrap().export, url_of(&odd).unwrap().export);
        assert_eq!(url(&at(b"2001:db8::1", &[])).unwrap(), "nfs://[2001:db8::1]/");
        let bad: [(&[u8], &[&[u8]]); 6] =
            [(b"", &[]), (b"..", &[]), (b"a/b", &[]), (b"\xff", &[]), (b"b", &[b".."]), (b"b", &[b"x/y"])];
        assert!(bad.iter().all(|(host, path)| url(&at(host, path)).is_none()));
        let places = to_refer(&[at(b"b", &[b"srv", b"y"]), odd, at(b"", &[])]).unwrap();
        assert_eq!(places.iter().count(), 2);
        assert_eq!(places.iter().next().unwrap().path, ["srv", "y"]);
        assert!(to_refer(&[]).is_none());
        assert_eq!(path_below("/", [&b"a"[..], b"b"].into_iter()).unwrap(), "/a/b");
        assert_eq!(path_below("/x", [&b"\xff"[..]].into_iter()), None);
    }
}
