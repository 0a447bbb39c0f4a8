//! What `leasehold status`, `leasehold cluster status` and the metrics show of a member.

use std::sync::Arc;
use std::time::Duration;

use cluster::State;
use serde_json::{Value, json};

use super::Membership;
use crate::config::cluster::ClusterConfig;
use crate::status;

/// The numbers of a member and of the cluster that it sees, for the metrics.
#[derive(Debug)]
pub struct Numbers {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of this member.
    pub member: String,
    /// Time until the end of its term. `None` if it is not in.
    pub term_left: Option<Duration>,
    /// etcd does not answer, or does not take this member.
    pub is_in_trouble: bool,
    /// Each member: its name, the virtual servers that it has, and whether it is draining.
    pub members: Vec<(String, u64, bool)>,
    /// Each virtual server: its address, whether a member has it, and its epoch.
    pub servers: Vec<(String, bool, u64)>,
}

/// The source of the numbers of a member.
pub type NumbersSource = Arc<dyn Fn() -> Numbers + Send + Sync>;

/// The source of the numbers of a member.
pub fn numbers(config: &ClusterConfig, membership: &Membership) -> NumbersSource {
    let (config, states) = (config.clone(), membership.handle.state());
    Arc::new(move || numbers_of(&config, &states.borrow()))
}

fn numbers_of(config: &ClusterConfig, state: &State) -> Numbers {
    let view = state.view.as_deref();
    let held = |name: &str| {
        let servers = view.iter().flat_map(|view| view.servers.keys().map(move |server| view.holder(server)));
        servers.filter(|holder| holder.is_some_and(|holder| holder == name)).count() as u64
    };
    let members = view.iter().flat_map(|view| &view.members);
    let servers = config.servers.iter().map(|server| {
        let address = server.address.to_string();
        let record = view.and_then(|view| view.servers.get(&address));
        let is_held = view.is_some_and(|view| view.holder(&address).is_some());
        (address, is_held, record.map_or(0, |(record, _)| record.epoch))
    });
    Numbers {
        cluster: config.name.clone(),
        member: config.member.clone(),
        term_left: term_left(state),
        is_in_trouble: state.trouble.is_some(),
        members: members.map(|(name, (of, _))| (name.clone(), held(name), of.draining)).collect(),
        // Before the first answer of etcd nothing is known of them.
        servers: if view.is_some() { servers.collect() } else { Vec::new() },
    }
}

/// Time until the end of the member's term. `None` if it is not in, or its term is over.
fn term_left(state: &State) -> Option<Duration> {
    state.orders.until?.checked_sub(cluster::now()).filter(|left| !left.is_zero())
}

/// The source of the status of a member.
pub fn source(config: &ClusterConfig, membership: &Membership) -> status::Source {
    let (config, states) = (config.clone(), membership.handle.state());
    status::source(move || json!({ "cluster": cluster(&config, &states.borrow()) }))
}

fn cluster(config: &ClusterConfig, state: &State) -> Value {
    let left = term_left(state).map(|left| left.as_millis() as u64);
    let members =
        state.view.iter().flat_map(|view| view.members.iter().map(move |(name, (of, _))| (view, name, of)));
    let members = members.map(|(view, name, of)| {
        let served = view.servers.keys().filter(|server| view.holder(server) == Some(name));
        json!({
            "name": name,
            "place": of.place,
            "version": of.version,
            "draining": of.draining,
            "beats": of.beat,
            "servers": served.count(),
        })
    });
    let servers = config.servers.iter().map(|server| {
        let address = server.address.to_string();
        let record = state.view.as_ref().and_then(|view| view.servers.get(&address));
        json!({
            "address": address,
            "member": state.view.as_ref().and_then(|view| view.holder(&address)),
            "epoch": record.map(|(record, _)| record.epoch),
        })
    });
    json!({
        "name": config.name,
        "member": config.member,
        "in": left.is_some(),
        "term_left_ms": left,
        "trouble": state.trouble.as_ref().map(|trouble| match trouble {
            ::cluster::Trouble::Silent(why) => why.clone(),
            ::cluster::Trouble::Refused(why) => why.to_string(),
        }),
        "members": members.collect::<Vec<_>>(),
        "servers": servers.collect::<Vec<_>>(),
    })
}
