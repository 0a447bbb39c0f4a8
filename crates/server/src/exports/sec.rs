//! `sec` of exports(5): the flavors of authentication that an export accepts.

use std::fmt;
use std::str::FromStr;

use protocol::nfs4::{RpcGssSvc, RpcsecGssInfo, SecOid, Secinfo};
use rpc::Credential;
use rpc::auth::{AUTH_NONE, AUTH_SYS};
use rpc::rpcsec_gss::Protection;

/// A flavor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// `sys`: a user that the client names, not proven.
    Sys,
    /// `none`: the anonymous user.
    None,
    /// `krb5`, `krb5i`, `krb5p`: a user with a ticket of Kerberos.
    Krb5(Protection),
}

impl Flavor {
    const ALL: [Flavor; 5] = [
        Flavor::Sys,
        Flavor::None,
        Flavor::Krb5(Protection::None),
        Flavor::Krb5(Protection::Integrity),
        Flavor::Krb5(Protection::Privacy),
    ];

    /// The flavor of a credential. `None` if it proves nothing, and is no claim either.
    pub fn of(credential: &Credential) -> Option<Flavor> {
        match credential {
            Credential::Sys(_) => Some(Flavor::Sys),
            Credential::None => Some(Flavor::None),
            Credential::Proven(proven) => Some(Flavor::Krb5(proven.protection)),
            Credential::Gss(_) | Credential::Tls | Credential::Other(_) => None,
        }
    }

    /// Is this Kerberos?
    pub fn is_kerberos(self) -> bool {
        matches!(self, Flavor::Krb5(_))
    }

    /// The number by which MOUNT names it.
    pub fn number(self) -> u32 {
        match self {
            Flavor::Sys => AUTH_SYS,
            Flavor::None => AUTH_NONE,
            Flavor::Krb5(protection) => protection.pseudo_flavor(),
        }
    }

    /// The description that SECINFO gives.
    pub fn secinfo(self) -> Secinfo {
        let service = match self {
            Flavor::Sys | Flavor::None => return Secinfo::Flavor(self.number()),
            Flavor::Krb5(Protection::None) => RpcGssSvc::None,
            Flavor::Krb5(Protection::Integrity) => RpcGssSvc::Integrity,
            Flavor::Krb5(Protection::Privacy) => RpcGssSvc::Privacy,
        };
        let oid = SecOid::new(rpc::rpcsec_gss::KRB5_OID).unwrap_or_default();
        Secinfo::RpcsecGss(RpcsecGssInfo { oid, qop: 0, service })
    }
}

/// The word of exports(5).
impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flavor::Sys => f.write_str("sys"),
            Flavor::None => f.write_str("none"),
            Flavor::Krb5(protection) => protection.fmt(f),
        }
    }
}

/// The flavors of an export, the most preferred first. At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sec(Vec<Flavor>);

impl Sec {
    /// Does the export accept this flavor?
    pub fn allows(&self, flavor: Flavor) -> bool {
        self.0.contains(&flavor)
    }

    /// Does the export accept Kerberos?
    pub fn has_kerberos(&self) -> bool {
        self.0.iter().any(|flavor| flavor.is_kerberos())
    }

    /// The flavors, the most preferred first.
    pub fn iter(&self) -> impl Iterator<Item = Flavor> {
        self.0.iter().copied()
    }
}

impl Default for Sec {
    /// `sys`. As with the kernel's server, a call without any user is accepted too if `sec` is not given.
    fn default() -> Sec {
        Sec(vec![Flavor::Sys, Flavor::None])
    }
}

/// The words, joined by colons.
impl fmt::Display for Sec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.iter().map(|flavor| flavor.to_string()).collect();
        f.write_str(&words.join(":"))
    }
}

impl FromStr for Sec {
    type Err = String;

    /// Parses words that are joined by colons.
    fn from_str(text: &str) -> Result<Sec, String> {
        let mut flavors = Vec::new();
        for word in text.split(':') {
            let known = Flavor::ALL.into_iter().find(|flavor| flavor.to_string() == word);
            let flavor = known.ok_or_else(|| {
                format!("`{word}` is no flavor of authentication: give sys, none, krb5, krb5i or krb5p")
            })?;
            if !flavors.contains(&flavor) {
                flavors.push(flavor);
            }
        }
        Ok(Sec(flavors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_order_and_wrong_ones_are_named() {
        let of = |text: &str| text.parse::<Sec>();
        assert_eq!(of("krb5p:krb5i:sys:krb5p").unwrap().to_string(), "krb5p:krb5i:sys");
        assert_eq!(of("sys:none").unwrap(), Sec::default());
        for wrong in ["", "sys:", "SYS", "krb5x", "sys,krb5"] {
            assert!(of(wrong).unwrap_err().contains("krb5p"), "{wrong}");
        }
        assert!(of("sys:krb5").unwrap().has_kerberos() && !Sec::default().has_kerberos());
    }

    #[test]
    fn a_client_learns_the_flavors_in_the_words_of_its_protocol() {
        let sec: Sec = "krb5p:sys".parse().unwrap();
        assert_eq!(sec.iter().map(Flavor::number).collect::<Vec<_>>(), [390_005, 1]);
        let Secinfo::RpcsecGss(info) = sec.iter().next().unwrap().secinfo() else { panic!("a mechanism") };
        // 1.2.840.113554.1.2.2 (RFC 4121), in DER without tag and length.
        assert_eq!(&*info.oid, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02");
        assert_eq!(info.service, RpcGssSvc::Privacy);
    }
}
