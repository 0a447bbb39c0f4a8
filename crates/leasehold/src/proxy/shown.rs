//! The admin socket, the metrics and the status of a proxy.

use std::path::Path;
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use server::Front;

use super::origins::Origins;
use crate::admin::{Admin, Caches, Sources};
use crate::holders::Holders;
use crate::live::Live;
use crate::metrics::Measured;
use crate::stack::Stack;
use crate::{Failure, status, usage};

/// Starts the admin socket. Returns the sources of the metrics, too.
pub fn show(
    origins: &Arc<Origins>,
    is_one: bool,
    stack: &Stack,
    directory: &Path,
) -> Result<(Admin, Measured, status::Source), Failure> {
    let of = || origins.clone();
    let status = {
        let (front, load, of) = (stack.front().clone(), stack.load(), of());
        status::source(move || status_of(&front, &load, &of, is_one))
    };
    let (caching, awaited, listed) = (of(), of(), of());
    let listed = Live::of(move || listed.listed());
    let caches = of();
    let caches = Caches::Several { caches: Live::of(move || caches.caches()), own: directory.to_owned() };
    let of_exports = listed.clone();
    let arbiters =
        Live::of(move || of_exports.now().into_iter().map(|listed| (listed.path, listed.arbiter)).collect());
    let measured = Measured {
        role: "proxy",
        serving: Some(stack.serving(arbiters)),
        caching: Live::of(move || caching.caching()),
        awaited: Live::of(move || awaited.awaited()),
        cluster: None,
        mounted: Weak::new(),
        status: status.clone(),
        directory: directory.to_owned(),
    };
    let holders = Holders { front: stack.front().clone(), exports: listed };
    let usage = usage::of_server(status.clone(), holders.clone());
    let sources = Sources {
        status,
        usage: usage.clone(),
        cache: caches,
        holders: Some(holders),
        cluster: None,
        before_recording: None,
    };
    Ok((Admin::start(directory, sources)?, measured, usage))
}

/// With the sums over all origins, and each by itself if there are several.
fn status_of(front: &Front, load: &rpc::Load, origins: &Origins, is_one: bool) -> Value {
    let each = origins.status();
    let first = origins.first_status();
    let mut total = status::total::of(each.values(), &["held", "link", "upstream", "cache"]);
    if is_one && let Some(first) = &first {
        total["origin"] = first["origin"].clone();
        total["origin_version"] = first["origin_version"].clone();
    } else {
        total["origin"] = json!(crate::units::counted(each.len() as u64, "origin", "origins"));
    }
    if !is_one || each.len() > 1 {
        total["origins"] = Value::Object(each);
    }
    status::total::join(status_of_clients(front, load), total)
}

/// The state of the clients' side of a proxy.
fn status_of_clients(front: &Front, load: &rpc::Load) -> Value {
    json!({
        "role": "proxy",
        "exports": status::exports(front),
        "calls": status::calls(front),
        "clients": status::clients(front),
        "lock_manager": status::lock_manager(front),
        "groups": status::groups(front),
        "load": status::load(load),
    })
}
