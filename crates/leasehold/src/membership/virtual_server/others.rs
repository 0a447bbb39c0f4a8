//! The origins of the other virtual servers of the cluster.
//!
//! A client of version 4 is sent to the virtual server that has an origin. A client of version 2 or 3 cannot
//! be. It is served by the virtual server that it has mounted, whose origin is then the other virtual server.
//! So one arbiter decides about each file, and every byte comes from the origin once. The other one is asked
//! over version 4.2 with AUTH_SYS, as a client of its own. It must therefore admit the members.

use std::net::SocketAddr;

use client::{Options, Url};
use server::{ExportOptions, Flavor, Location, Locations};

use crate::config::origins::OriginConfig;

/// The URL of an origin at the virtual server `home`, with the options of the origin for caching. None if its
/// export with these options takes no AUTH_SYS without TLS.
pub fn url(origin: &OriginConfig, home: &str, access: &ExportOptions) -> Option<Url> {
    if !access.sec.allows(Flavor::Sys) || !access.xprtsec.allows(rpc::TransportSecurity::None) {
        return None;
    }
    let address: SocketAddr = home.parse().ok()?;
    let port = if access.secure { "resvport" } else { "noresvport" };
    let options = Url::parse(&format!("nfs://host/?vers=4.2&{port}")).ok()?.options;
    let options = Options { cache: origin.url.options.cache, ..options };
    let export = origin.path.clone().into_bytes();
    Some(Url { host: address.ip().to_string(), port: Some(address.port()), export, options })
}

/// The place of an export at the virtual server `home`.
pub fn locations(path: &str, home: &str) -> Locations {
    let host = home.rsplit_once(':').map_or(home, |(host, _)| host);
    let names = path.split('/').filter(|name| !name.is_empty());
    let location = Location {
        hosts: vec![host.trim_matches(['[', ']']).to_owned()],
        path: names.map(str::to_owned).collect(),
    };
    Locations::of(vec![location]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::origins::read_text;

    fn origin(more: &str) -> OriginConfig {
        let text =
            format!("[[origin]]\nurl = 'nfs://filer/x y?vers=3&sec=krb5&noac'\npath = '/home'\n{more}");
        read_text(&text).unwrap().remove(0)
    }

    #[test]
    fn another_virtual_server_is_asked_over_version_4_2_with_auth_sys() {
        let at = |more: &str, home: &str| {
            let origin = origin(more);
            url(&origin, home, &origin.access(&ExportOptions::default()))
        };
        assert_eq!(at("", "[fd00::5]:2049").unwrap().to_string(), "nfs://[fd00::5]:2049/home");
        let options = at("secure = false", "10.0.0.5:2049").unwrap().options;
        assert!(!options.resvport && options.sec.is_none() && !options.cache.ac);
        assert_eq!(at("sec = 'krb5'", "10.0.0.5:2049"), None);
        assert_eq!(at("xprtsec = 'tls:mtls'", "10.0.0.5:2049"), None);
        assert_eq!(locations("/a/b", "[fd00::5]:2049").to_string(), "/a/b@[fd00::5]");
    }
}
