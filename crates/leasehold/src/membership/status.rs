//! What `leasehold status` and `leasehold cluster status` show of a member.

use cluster::State;
use serde_json::{Value, json};

use super::Membership;
use crate::config::cluster::ClusterConfig;
use crate::status;

/// The source of the status of a member.
pub fn source(config: &ClusterConfig, membership: &Membership) -> status::Source {
    let (config, states) = (config.clone(), membership.handle.state());
    status::source(move || json!({ "cluster": cluster(&config, &states.borrow()) }))
}

fn cluster(config: &ClusterConfig, state: &State) -> Value {
    let left = state.orders.until.map(|until| until.saturating_sub(cluster::now()).as_millis() as u64);
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
        "in": state.orders.until.is_some(),
        "term_left_ms": left,
        "trouble": state.trouble.as_ref().map(|trouble| match trouble {
            ::cluster::Trouble::Silent(why) => why.clone(),
            ::cluster::Trouble::Refused(why) => why.to_string(),
        }),
        "members": members.collect::<Vec<_>>(),
        "servers": servers.collect::<Vec<_>>(),
    })
}
