//! A proxy from its start to its end.

use std::path::PathBuf;
use std::sync::Arc;

use server::{Nqnfs, Replica};
use tokio::task::JoinHandle;

use super::opening::{self, Opening};
use super::origin::{Common, Wanted, make_state, reach};
use super::origins::{Origins, Site};
use super::referrals::Referrals;
use super::{Wants, shown};
use crate::admin::Admin;
use crate::auditing::AuditLog;
use crate::cli::{Command, Proxy, Version4};
use crate::membership::virtual_server::VirtualServer;
use crate::metrics::{Measured, Metrics};
use crate::owner::Incarnation;
use crate::reload::{ACCESS, LIMITS, ORIGINS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Lock};
use crate::{Failure, cli, kerberos, tls};

/// Serves these origins until the process is told to stop.
pub async fn serve(
    arguments: Proxy,
    wants: Wants,
    begun: Begun,
    mut end: End,
    reload: Reload,
) -> Result<(), Failure> {
    let Some((locked, opening)) = Box::pin(lock(&arguments, &wants, &mut end)).await? else { return Ok(()) };
    let Some(serving) =
        Box::pin(Serving::start(&arguments, wants, begun, (locked, opening), &mut end)).await?
    else {
        return Ok(());
    };
    let (admin, measured, usage) =
        shown::show(&serving.origins, serving.is_one, &serving.stack, &serving.directory)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone(), usage).await?;
    let service = serving.announce(metrics.as_ref(), &measured);
    let upkeep = [
        tokio::spawn(serving.origins.clone().share()),
        tokio::spawn(serving.origins.clone().ask_about_referrals()),
    ];
    serving.until_told_to_end(end, reload).await;
    service::stopping();
    drop(service);
    upkeep.iter().for_each(JoinHandle::abort);
    serving.end(admin).await;
    Ok(())
}

/// The parts that are there before an origin is reached.
pub struct Begun {
    tls: Option<Arc<rpc::tls::Acceptor>>,
    gss: Option<Arc<rpc::rpcsec_gss::Acceptor>>,
    /// A change of it needs a restart.
    policy: cli::Tls,
}

impl Begun {
    pub fn new(arguments: &Proxy, wanted: &[Wanted]) -> Result<Begun, Failure> {
        let tls = tls::acceptor(&arguments.tls)?;
        let gss = kerberos::acceptor(&arguments.kerberos, wanted.iter().map(|wanted| &wanted.access.sec))?;
        for wanted in wanted.iter().filter(|wanted| wanted.url.options.sec.is_some()) {
            if wanted.access.sec.allows(server::Flavor::Sys) {
                crate::output::tell(format_args!(
                    "clients of {} are taken with sec=sys, so they use the tickets of the users that they claim to be; to make them prove it, add --sec krb5:krb5i:krb5p",
                    wanted.path
                ));
            }
        }
        Ok(Begun { tls, gss, policy: arguments.tls.clone() })
    }

    fn listening<'b>(&'b self, arguments: &'b Proxy, version4: &'b Version4) -> Listening<'b> {
        Listening {
            network: &arguments.network,
            tls: self.tls.as_ref(),
            gss: self.gss.as_ref(),
            version4,
            users: &arguments.users,
        }
    }

    /// What a reload does besides the configuration.
    fn reopen(&self, stack: &Stack) {
        tls::reload(self.tls.as_ref());
        stack.front().forget_groups();
    }

    /// Checks and looks up the options of exports that will be in force.
    fn prepare(&self, stack: &Stack, wanted: &[Wanted]) -> Result<(), Failure> {
        wanted.iter().try_for_each(|wanted| kerberos::check_again(self.gss.as_ref(), &wanted.access.sec))?;
        stack.look_up(wanted.iter().map(|wanted| &wanted.access));
        Ok(())
    }
}

/// The directory of a proxy, which nobody else uses; and the only origin, if there is one.
struct Locked {
    state: PathBuf,
    nqnfs: Nqnfs,
    common: Common,
    /// The lock, if it is not that of the only origin.
    lock: Option<Lock>,
}

impl Locked {
    fn new(
        arguments: &Proxy,
        state: PathBuf,
        lock: Option<Lock>,
        virtual_server: Option<Arc<VirtualServer>>,
    ) -> Result<Locked, Failure> {
        let nqnfs = stack::nqnfs(&state)?;
        let audit = AuditLog::open(&arguments.auditing)?;
        let version4 = arguments.version4.clone();
        let common = Common { version4, recovery: nqnfs.recovery(), audit, virtual_server };
        Ok(Locked { state, nqnfs, common, lock })
    }
}

/// Locks the directory, and begins to open the origins. With one, waits until it answers. None if the process
/// is told to end before.
async fn lock(
    arguments: &Proxy,
    wants: &Wants,
    end: &mut End,
) -> Result<Option<(Locked, Vec<Opening>)>, Failure> {
    if let [one] = &wants.wanted[..]
        && wants.is_one
    {
        let opened = open_one(arguments, one.clone(), end).await?;
        return Ok(opened.map(|(locked, opening)| (locked, vec![opening])));
    }
    let state = make_state(&wants.directory)?;
    let lock = tokio::select! {
        lock = state::lock_after(&state, &wants.directory) => lock?,
        () = end.wait() => return Ok(None),
    };
    let locked = Locked::new(arguments, state, Some(lock), wants.virtual_server.clone())?;
    let own = wants.wanted.iter().filter(|wanted| !wanted.is_of_other());
    let opening = own.map(|wanted| Opening::begin(wanted.clone(), locked.common.clone())).collect();
    Ok(Some((locked, opening)))
}

/// Waits until the only origin answers, and opens its cache. None if the process is told to end before.
async fn open_one(
    arguments: &Proxy,
    wanted: Wanted,
    end: &mut End,
) -> Result<Option<(Locked, Opening)>, Failure> {
    let reaching = async {
        let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
        let origin = reach(&wanted.url, &incarnation.client).await?;
        Ok::<_, Failure>((incarnation, origin))
    };
    // A signal must also end the wait for the origin.
    let (incarnation, origin) = tokio::select! {
        reached = Box::pin(reaching) => reached?,
        () = end.wait() => return Ok(None),
    };
    let locked = Locked::new(arguments, make_state(&wanted.directory)?, None, None)?;
    let opening = Opening::of(wanted, incarnation, origin, &locked.common).await?;
    Ok(Some((locked, opening)))
}

/// A proxy that serves.
struct Serving {
    directory: PathBuf,
    begun: Begun,
    stack: Stack,
    origins: Arc<Origins>,
    audit: AuditLog,
    /// The origins of this process at its start.
    configured: Vec<Wanted>,
    /// A URL names the only origin, and not a table.
    is_one: bool,
    /// The virtual server of a cluster that this process is.
    virtual_server: Option<Arc<VirtualServer>>,
    /// Of the directory, if it is not that of the only origin.
    lock: Option<Lock>,
}

impl Serving {
    /// Waits for the exports, and serves them. None if the process is told to end before.
    async fn start(
        arguments: &Proxy,
        wants: Wants,
        begun: Begun,
        (locked, mut opening): (Locked, Vec<Opening>),
        end: &mut End,
    ) -> Result<Option<Serving>, Failure> {
        let Wants { directory, wanted, is_one, virtual_server } = wants;
        let Locked { state, nqnfs, common, lock } = locked;
        let referrals = Referrals { answer: arguments.referrals, state: state.clone() };
        let referred = referrals.recorded(&directory, &wanted);
        opening.extend(referred.into_iter().map(|wanted| Opening::begin(wanted, common.clone())));
        let audit = common.audit.clone();
        let exports = tokio::select! {
            exports = opening::exports(&mut opening) => exports,
            () = end.wait() => return Ok(None),
        };
        let (others, configured): (Vec<_>, Vec<_>) = wanted.into_iter().partition(Wanted::is_of_other);
        let exports_of_others = others.iter().map(Wanted::awaited_export);
        let referrals_there = virtual_server.iter().flat_map(|of| of.referrals());
        let exports = exports.into_iter().chain(exports_of_others).chain(referrals_there).collect();
        let longest = arguments.version4.lease_time;
        let lease_time = opening.iter().map(|opening| opening.lease_time(longest)).min().unwrap_or(longest);
        let version4 = Version4 { lease_time, ..arguments.version4.clone() };
        let replica = virtual_server.clone().map(|of| -> Arc<dyn Replica> { of });
        let keep = Keep { state: &state, handle_key: arguments.handle_key.as_deref(), replica };
        let listening = begun.listening(arguments, &version4);
        let stack = Stack::start(exports, keep, nqnfs, listening).await?;
        let (front, address) = (stack.front().clone(), stack.address());
        let site = Site { front, address, directory: directory.clone(), referrals, common };
        let origins = Origins::start(site, opening).await;
        others.into_iter().for_each(|wanted| origins.join_when_asked(wanted));
        Ok(Some(Serving {
            directory,
            begun,
            stack,
            origins,
            audit,
            configured,
            is_one,
            virtual_server,
            lock,
        }))
    }

    /// Tells users, programs and the service manager that clients are served.
    fn announce(&self, metrics: Option<&Metrics>, measured: &Measured) -> Service {
        let (address, directory) = (self.stack.address(), self.directory.display());
        let (what, how) = match &self.configured[..] {
            [one] if self.is_one => {
                let mounts = format!("a client mounts it with: {}", self.stack.mount_line(&one.path));
                (one.url.to_string(), mounts)
            }
            several => {
                let count = crate::units::counted(several.len() as u64, "origin", "origins");
                (count, format!("leasehold status {directory} shows them"))
            }
        };
        crate::output::announce(format_args!("proxy of {what} on {address}; {how}"));
        self.origins.announce();
        metrics.into_iter().for_each(Metrics::announce);
        Service::ready(&format!("proxy of {what} on {address}"), measured)
    }

    async fn until_told_to_end(&self, mut end: End, mut reload: Reload) {
        while end.next().await == Told::Reload {
            self.audit.reopen();
            self.begun.reopen(&self.stack);
            if let Some(wanted) = self.read_again(&mut reload) {
                // An origin that goes may not answer.
                tokio::select! {
                    () = self.origins.change(wanted) => self.stack.judge_again(),
                    () = end.wait() => break,
                }
            }
            let asking = self.origins.clone();
            tokio::spawn(async move { asking.ask_now().await });
        }
    }

    /// Reads the configuration again, and applies what takes effect at once. Returns the origins that it
    /// names, if it is right.
    fn read_again(&self, reload: &mut Reload) -> Option<Vec<Wanted>> {
        let (own, virtual_server) = (&self.configured[..], self.virtual_server.as_deref());
        let live: &[&[&str]] = if self.is_one || virtual_server.is_some() {
            &[&LIMITS, &ACCESS]
        } else {
            &[&LIMITS, &ACCESS, &ORIGINS]
        };
        let mut change = None;
        reload.read_again(&live.concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            let one = self.is_one.then_some(own);
            let new = Wants::again(new, &self.begun.policy, &self.directory, one, virtual_server)?;
            self.origins.check(&new)?;
            self.begun.prepare(&self.stack, &new)?;
            self.origins.apply(&new);
            self.stack.judge_again();
            change = Some(new);
            Ok(())
        });
        change
    }

    async fn end(self, admin: Admin) {
        admin.begin_end();
        self.origins.begin_end().await;
        self.stack.stop().await;
        self.audit.finish().await;
        self.origins.end().await;
        admin.end(None).await;
        self.lock.into_iter().for_each(Lock::until_exit);
    }
}
