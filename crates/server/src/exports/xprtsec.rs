//! `xprtsec` of exports(5): the kinds of connections over which clients may use an export.

use std::fmt;
use std::str::FromStr;

use rpc::TransportSecurity;

/// A set of kinds of connections. The default has all, as in exports(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XprtSec([bool; TransportSecurity::ALL.len()]);

impl XprtSec {
    /// All kinds with TLS.
    pub const ENCRYPTED: XprtSec = XprtSec([false, true, true]);
    /// Plain text alone.
    pub const PLAIN: XprtSec = XprtSec([true, false, false]);

    /// Is this kind in the set?
    pub fn allows(self, security: TransportSecurity) -> bool {
        self.0[security as usize]
    }

    /// The kinds that are in both sets. `None` if there are none.
    pub fn and(self, other: XprtSec) -> Option<XprtSec> {
        let both = TransportSecurity::ALL.map(|security| self.allows(security) && other.allows(security));
        both.contains(&true).then_some(XprtSec(both))
    }
}

impl Default for XprtSec {
    fn default() -> XprtSec {
        XprtSec([true; TransportSecurity::ALL.len()])
    }
}

/// The words, joined by colons.
impl fmt::Display for XprtSec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = TransportSecurity::ALL.into_iter().filter(|security| self.allows(*security));
        let words: Vec<&str> = words.map(TransportSecurity::word).collect();
        f.write_str(&words.join(":"))
    }
}

impl FromStr for XprtSec {
    type Err = String;

    /// Parses words that are joined by colons.
    fn from_str(text: &str) -> Result<XprtSec, String> {
        let mut set = XprtSec([false; TransportSecurity::ALL.len()]);
        for word in text.split(':') {
            let known = TransportSecurity::ALL.into_iter().find(|security| security.word() == word);
            let security = known
                .ok_or_else(|| format!("`{word}` is no security of connections: give none, tls or mtls"))?;
            set.0[security as usize] = true;
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_exports5() {
        for text in ["none", "tls", "mtls", "none:tls", "tls:mtls", "none:tls:mtls"] {
            let set: XprtSec = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
        }
        assert_eq!("mtls:tls".parse(), Ok(XprtSec::ENCRYPTED));
        for wrong in ["", "ssl", "tls:", "tls,mtls"] {
            assert!(wrong.parse::<XprtSec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sets_have_an_intersection_or_nothing_in_common() {
        let of = |text: &str| text.parse::<XprtSec>().unwrap();
        assert_eq!(of("none:mtls").and(XprtSec::ENCRYPTED), Some(of("mtls")));
        assert_eq!(of("none").and(XprtSec::ENCRYPTED), None);
        assert_eq!(XprtSec::default().and(XprtSec::PLAIN), Some(XprtSec::PLAIN));
    }
}
