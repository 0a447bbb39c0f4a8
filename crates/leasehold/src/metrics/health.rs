//! Whether the process works: `/healthz`, and whether it serves clients now: `/readyz`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use protocol::nfs3;
use rpc::{Credential, Link, LinkOptions, Outgoing, Patience};
use tokio::time::{Instant, timeout};
use xdr::Encoder;

use super::{Awaited, Measured};

/// How long the server and the disk may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The troubles, one line each; none if all is well.
pub type Troubles = Vec<String>;

/// Does the server answer a NULL call on its own port, and does the disk answer? A full disk is not a trouble
/// here: it needs somebody who frees space, and not a restart.
pub async fn health(measured: &Measured) -> Troubles {
    let (server, disk) = tokio::join!(server(measured), disk(&measured.directory));
    [server, disk].into_iter().filter_map(Result::err).collect()
}

/// Does the server answer a NULL call on its own port? Yes, if there is none.
pub async fn server(measured: &Measured) -> Result<(), String> {
    match &measured.serving {
        Some(serving) => null_call(reachable(serving.address)).await,
        None => Ok(()),
    }
}

/// Are clients served? Not in the grace period, and not while the origin is silent; of several origins, all.
pub fn readiness(measured: &Measured) -> Troubles {
    let mut troubles = Troubles::new();
    if let Some(numbers) = measured.cluster.as_ref().map(|numbers| numbers()) {
        if numbers.term_left.is_none() {
            troubles.push(format!("cluster: {} is not in {}", numbers.member, numbers.cluster));
        }
        return troubles;
    }
    if measured.serving.as_ref().is_some_and(|serving| serving.front.in_grace()) {
        troubles.push("grace period: clients may only reclaim what they held before the restart".to_owned());
    }
    let (mut caching, mut awaited) = (measured.caching.now(), measured.awaited.now());
    caching.retain(|caching| !caching.is_elsewhere);
    awaited.retain(|awaited| !awaited.is_elsewhere);
    let mut away = Troubles::new();
    for Awaited { origin, why, .. } in &awaited {
        let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        away.push(format!("origin: {origin} is not served yet{why}"));
    }
    for caching in &caching {
        let silent = caching.origin.unanswered_since().and_then(|since| *since.borrow());
        let silence = silent.map(|since| since.elapsed()).unwrap_or_default();
        if silence > PATIENCE || caching.cache.stats().is_away {
            let (origin, seconds) = (caching.origin.url(), silence.as_secs());
            away.push(format!("origin: {origin} has not answered for {seconds} s"));
        }
    }
    // Clients of the others are served.
    if away.len() == caching.len() + awaited.len() {
        troubles.extend(away);
    }
    troubles
}

/// The address at which this machine reaches a listener.
fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

async fn null_call(server: SocketAddr) -> Result<(), String> {
    let outgoing = Outgoing {
        program: nfs3::PROGRAM,
        version: nfs3::VERSION,
        procedure: nfs3::Procedure::Null as u32,
        credential: Credential::None,
        arguments: Encoder::new().finish(),
    };
    let link = Link::new(LinkOptions::new(server));
    let answer = link.call(outgoing, Patience::Until(Instant::now() + PATIENCE)).await;
    answer.map(drop).map_err(|error| format!("server: no answer to a NULL call at {server}: {error}"))
}

/// Opens and syncs the directory, in a thread that may hang.
async fn disk(directory: &Path) -> Result<(), String> {
    let path = directory.to_owned();
    let asked = tokio::task::spawn_blocking(move || std::fs::File::open(path)?.sync_all());
    let shown = directory.display();
    match timeout(PATIENCE, asked).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(format!("disk: {shown}: {error}")),
        Ok(Err(_)) => Err(format!("disk: {shown} could not be asked")),
        Err(_) => Err(format!("disk: {shown} has not answered for {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_does_not_listen_and_a_missing_disk_are_troubles() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let trouble = null_call(unused).await.unwrap_err();
        assert!(trouble.starts_with(&format!("server: no answer to a NULL call at {unused}: ")), "{trouble}");
        let trouble = disk(Path::new("/nonexistent")).await.unwrap_err();
        assert!(trouble.contains("/nonexistent: No such file"), "{trouble}");
        assert_eq!(disk(&std::env::temp_dir()).await, Ok(()));
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_at_this_machines() {
        assert_eq!(reachable("0.0.0.0:2049".parse().unwrap()), "127.0.0.1:2049".parse().unwrap());
        assert_eq!(reachable("[::]:2049".parse().unwrap()), "[::1]:2049".parse().unwrap());
        assert_eq!(reachable("10.0.0.1:1".parse().unwrap()), "10.0.0.1:1".parse().unwrap());
    }
}
