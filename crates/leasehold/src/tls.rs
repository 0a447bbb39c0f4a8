//! TLS of `serve` and `proxy`: the certificates, and what `--tls` and `--xprtsec` mean together.

use std::sync::Arc;

use rpc::TransportSecurity;
use rpc::tls::{Acceptor, ServerFiles};
use server::XprtSec;

use crate::Failure;
use crate::cli::{Tls, TlsPolicy};
use crate::mount::log::notice;

/// Reads the certificates, unless TLS is off.
///
/// # Errors
/// Names the file that cannot be used, or the option that is missing.
pub fn acceptor(tls: &Tls) -> Result<Option<Arc<Acceptor>>, Failure> {
    let named = [&tls.certificate, &tls.key, &tls.client_ca].into_iter().any(Option::is_some);
    if tls.policy == TlsPolicy::Off {
        let useless = "certificates are named, and TLS is off; add --tls allow or --tls require";
        return if named { Err(Failure(useless.into())) } else { Ok(None) };
    }
    let lacks = || Failure("--tls needs the certificate of this server: add --tls-certificate FILE".into());
    let certificate = tls.certificate.clone().ok_or_else(lacks)?;
    let key = tls.key.clone().unwrap_or_else(|| certificate.clone());
    let files = ServerFiles { certificate, key, client_ca: tls.client_ca.clone() };
    Acceptor::open(files).map(Some).map_err(|error| Failure(error.to_string()))
}

/// Opens the files that the URL of an origin names, as connecting to it does.
///
/// # Errors
/// Names the file that cannot be used.
pub fn check_origin(url: &client::Url) -> Result<(), Failure> {
    let files = url.options.tls_files().map_err(|error| Failure(error.to_string()))?;
    let Some(files) = files else { return Ok(()) };
    files.config(&[]).map(drop).map_err(|error| Failure(error.to_string()))
}

/// The kinds of connections over which clients may use an export, out of those that its options allow.
///
/// # Errors
/// If there is none.
pub fn confine(tls: &Tls, wanted: XprtSec, export: &str) -> Result<XprtSec, Failure> {
    let of_policy = match tls.policy {
        TlsPolicy::Off => XprtSec::PLAIN,
        TlsPolicy::Allow => XprtSec::default(),
        TlsPolicy::Require => XprtSec::ENCRYPTED,
    };
    let nobody = |way_out: &str| {
        Failure(format!("nobody could use {export} with xprtsec={wanted}: {way_out}, or change xprtsec"))
    };
    let both = wanted.and(of_policy).ok_or_else(|| {
        nobody(if tls.policy == TlsPolicy::Off {
            "add --tls allow or --tls require"
        } else {
            "use --tls allow"
        })
    })?;
    let needs_certificate = TransportSecurity::ALL
        .into_iter()
        .all(|security| both.allows(security) == (security == TransportSecurity::Mtls));
    if needs_certificate && tls.client_ca.is_none() {
        return Err(nobody("name the CAs of the clients with --tls-client-ca FILE"));
    }
    Ok(both)
}

/// Reads the certificates again.
pub fn reload(acceptor: Option<&Arc<Acceptor>>) {
    match acceptor.map(|acceptor| acceptor.reload()) {
        None => {}
        Some(Ok(())) => {
            notice("the certificates have been read again; they are in force for new connections");
        }
        Some(Err(error)) => notice(&format!("the certificates in force stay: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_can_be_used_by_somebody_or_is_refused() {
        let of = |policy, wanted: &str, has_ca: bool| {
            let tls = Tls { policy, client_ca: has_ca.then(|| "ca.crt".into()), ..Tls::default() };
            confine(&tls, wanted.parse().unwrap(), "/x").map(|set| set.to_string()).map_err(|error| error.0)
        };
        use TlsPolicy::{Allow, Off, Require};
        assert_eq!(of(Off, "none:tls:mtls", false).unwrap(), "none");
        assert_eq!(of(Allow, "none:tls:mtls", false).unwrap(), "none:tls:mtls");
        assert_eq!(of(Require, "none:tls:mtls", false).unwrap(), "tls:mtls");
        assert_eq!(of(Allow, "mtls", true).unwrap(), "mtls");
        assert!(of(Off, "tls", false).unwrap_err().contains("--tls allow"));
        assert!(of(Require, "none", false).unwrap_err().contains("use --tls allow"));
        assert!(of(Allow, "mtls", false).unwrap_err().contains("--tls-client-ca"));
    }

    #[test]
    fn options_that_make_no_sense_together_are_named() {
        let certificate = Some("server.crt".into());
        let of = |tls: Tls| acceptor(&tls).unwrap_err().0;
        let off = Tls { certificate, ..Tls::default() };
        assert!(of(off.clone()).contains("TLS is off"));
        assert!(of(Tls { policy: TlsPolicy::Allow, ..Tls::default() }).contains("--tls-certificate"));
        assert!(of(Tls { policy: TlsPolicy::Allow, ..off }).contains("cannot use server.crt"));
    }
}
