//! The clients of an export, in the words of exports(5): addresses, networks, names of hosts, and netgroups.
//!
//! A name stands for the addresses that the database of hosts has for it. So a peer is judged by its address
//! alone, and nobody waits for a look-up. See [`hosts`].

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Instant;

use super::hosts::{self, HostDatabase, HostName, Named};
use super::ranges::Ranges;

/// The most addresses, networks and names of one export.
const CLIENTS_MAX: usize = 4096;

/// Addresses, networks, names of hosts and netgroups: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`,
/// `render01.example.org`, `@farm`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientList {
    networks: Vec<Network>,
    /// The networks of IPv4.
    v4: Ranges<u32>,
    /// The networks of IPv6.
    v6: Ranges<u128>,
    named: Vec<Named>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

/// One of a list.
enum Client {
    Network(Network),
    Named(HostName),
}

impl ClientList {
    /// Is this client in the list? The empty list contains all clients.
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        (self.networks.is_empty() && self.named.is_empty())
            || match client {
                IpAddr::V4(client) => self.v4.contain(u32::from(client)),
                IpAddr::V6(client) => self.v6.contain(u128::from(client)),
            }
            || self.named.iter().any(|named| named.contains(client))
    }

    /// As text, one for each of the list.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let named = self.named.iter().map(|named| named.name().to_string());
        self.networks.iter().map(ToString::to_string).chain(named)
    }

    /// Looks the names up, which may block for long. Clones of the list know their addresses from then on.
    pub fn look_up(&self, database: &dyn HostDatabase) {
        hosts::look_up(&self.named, database, Instant::now());
    }

    /// Names of the other list keep the addresses that they have there.
    pub(super) fn take_addresses_of(&mut self, other: &ClientList) {
        for named in &mut self.named {
            if let Some(known) = other.named.iter().find(|known| known == &named) {
                named.clone_from(known);
            }
        }
    }

    /// Its names of hosts and netgroups.
    pub(super) fn named(&self) -> &[Named] {
        &self.named
    }
}

impl Network {
    /// The first and the last address of an IPv4 network.
    fn range_v4(&self) -> Option<(u32, u32)> {
        let IpAddr::V4(address) = self.address else { return None };
        let host = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        let address = u32::from(address);
        Some((address & !host, address | host))
    }

    /// The first and the last address of an IPv6 network.
    fn range_v6(&self) -> Option<(u128, u128)> {
        let IpAddr::V6(address) = self.address else { return None };
        let host = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        let address = u128::from(address);
        Some((address & !host, address | host))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for ClientList {
    type Err = String;

    /// Parses addresses, networks and names separated by commas; `*` means all clients.
    fn from_str(text: &str) -> Result<ClientList, String> {
        let mut list = ClientList::default();
        if text.trim() == "*" {
            return Ok(list);
        }
        for (at, one) in text.split(',').enumerate() {
            if at >= CLIENTS_MAX {
                return Err(format!("more than {CLIENTS_MAX} clients: name networks or a netgroup"));
            }
            match one.trim().parse()? {
                Client::Network(network) => list.networks.push(network),
                Client::Named(name) => list.named.push(Named::new(name)),
            }
        }
        list.v4 = Ranges::new(list.networks.iter().filter_map(Network::range_v4).collect());
        list.v6 = Ranges::new(list.networks.iter().filter_map(Network::range_v6).collect());
        Ok(list)
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Client, String> {
        let bad = || {
            format!(
                "`{text}` is no client address or name: give ADDRESS, ADDRESS/PREFIX, HOST, @NETGROUP or *"
            )
        };
        if let Ok(name) = text.parse() {
            return Ok(Client::Named(name));
        }
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
        };
        let address = address.parse::<IpAddr>().map_err(|_| bad())?;
        // IPv4 clients are compared as such, even if the socket reports an IPv4-mapped address.
        if let IpAddr::V6(mapped) = address
            && let Some(address) = mapped.to_ipv4_mapped()
        {
            let prefix = prefix.unwrap_or(128).saturating_sub(96);
            return Err(format!("`{text}` is no client address: write it as {address}/{prefix}"));
        }
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(longest);
        if prefix > longest { Err(bad()) } else { Ok(Client::Network(Network { address, prefix })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn client_lists_have_addresses_networks_and_names() {
        let list: ClientList =
            "192.0.2.0/24, 2001:db8::/32,10.0.0.1, Render01.example.org,@farm".parse().unwrap();
        for inside in ["192.0.2.255", "2001:db8:1::1", "10.0.0.1", "::ffff:192.0.2.1"] {
            assert!(list.admits(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["192.0.3.1", "2001:db9::1", "10.0.0.2"] {
            assert!(!list.admits(outside.parse().unwrap()), "{outside}");
        }
        let names: Vec<String> = list.names().collect();
        assert_eq!(names, ["192.0.2.0/24", "2001:db8::/32", "10.0.0.1/32", "render01.example.org", "@farm"]);
        assert!("*".parse::<ClientList>().unwrap().admits("1.2.3.4".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<ClientList>().unwrap().admits("1.2.3.4".parse().unwrap()));
        assert!(!"::/0".parse::<ClientList>().unwrap().admits("1.2.3.4".parse().unwrap()));
        for bad in [
            "",
            "1.2.3.4/33",
            "1.2.3.4/x",
            "10.0.0.1,",
            "*,10.0.0.1",
            "1.2.3",
            "1.2.3.4.5",
            "*.example.org",
            "a b",
            "a..b",
            "-a",
            "@",
            "@a b",
            "host/24",
            "x\ny",
        ] {
            assert!(bad.parse::<ClientList>().is_err(), "{bad}");
        }
        let many = vec!["10.0.0.1"; CLIENTS_MAX + 1].join(",");
        assert!(many.parse::<ClientList>().unwrap_err().contains("4096"));
        for (mapped, instead) in [("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("::ffff:10.0.0.1", "10.0.0.1/32")] {
            assert!(mapped.parse::<ClientList>().unwrap_err().contains(instead), "{mapped}");
        }
    }

    #[test]
    fn a_list_of_names_alone_admits_nobody_before_they_are_found() {
        let list: ClientList = "render01".parse().unwrap();
        assert!(!list.admits("10.0.0.1".parse().unwrap()));
    }

    /// Networks of few addresses, so that random ones overlap.
    fn near() -> impl Strategy<Value = (IpAddr, u8)> {
        let low = 0_u128..512;
        prop_oneof![
            (low.clone(), 0_u8..=32).prop_map(|(low, prefix)| {
                (IpAddr::V4((0x0a00_0000 + u32::try_from(low).unwrap_or(0)).into()), prefix)
            }),
            (low, 0_u8..=128).prop_map(|(low, prefix)| (IpAddr::V6(((0x2001 << 112) + low).into()), prefix)),
        ]
    }

    /// The definition of membership: the first `prefix` bits of both are the same.
    fn same_network(network: IpAddr, prefix: u8, client: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => format!("4:{:032b}", u32::from(address)),
            IpAddr::V6(address) => format!("6:{:0128b}", u128::from(address)),
        };
        let length = 2 + usize::from(prefix);
        bits(client).starts_with(&bits(network)[..length])
    }

    proptest! {
        #[test]
        fn a_list_admits_the_addresses_of_each_of_its_networks(
            networks in proptest::collection::vec(near(), 1..12),
            clients in proptest::collection::vec(near(), 1..40),
        ) {
            let names: Vec<String> = networks.iter().map(|(at, prefix)| format!("{at}/{prefix}")).collect();
            let list: ClientList = names.join(",").parse().unwrap();
            prop_assert_eq!(list.names().collect::<Vec<_>>(), names);
            for (client, _) in clients {
                let expected = networks.iter().any(|(at, prefix)| same_network(*at, *prefix, client));
                prop_assert_eq!(list.admits(client), expected, "{}", client);
            }
        }
    }
}
