//! The connections to one origin, and how many of them are in use.
//!
//! The kernel bounds the bytes in flight of a connection (tcp(7), `tcp_rmem` and `tcp_wmem`: 4 to 6 MiB if
//! nobody has raised them). On a link whose bandwidth times delay is larger, one connection uses only a part
//! of it. So if the option `nconnect` does not fix their number, READs and WRITEs bring further connections
//! into use while more of their bytes are in flight than the present ones carry. Within a site one connection
//! is enough. The number never falls. A further connection carries calls only while it stands: a server or a
//! firewall may allow fewer of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rpc::{Link, Transport};

use crate::url::Options;

/// Most connections to one origin, as in nfs(5).
pub(crate) const LINKS_MAX: u8 = 16;
/// Bytes of READs and WRITEs in flight that one connection carries.
const LINK_BYTES: u64 = 4 << 20;
/// Below this round trip, one connection carries more than any network card.
const NEAR: Duration = Duration::from_millis(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Links {
    /// At least one. Over version 4, the first carries the callbacks.
    all: Vec<Link>,
    /// All of them are used from the beginning.
    fixed: bool,
    /// How many of them are in use. At least one.
    in_use: AtomicUsize,
    next: AtomicUsize,
    /// Bytes of READs and WRITEs in flight.
    bulk_bytes: AtomicU64,
    /// The shortest time, in nanoseconds, in which a call was answered.
    round_trip_nanos: AtomicU64,
}

impl Links {
    /// As many links as `nconnect` says. Without it, one over UDP, and over TCP one that more may follow.
    pub(crate) fn new(options: &Options, transport: Transport, link: impl Fn() -> Link) -> Links {
        let fixed = options.nconnect.or((transport == Transport::Udp).then_some(1));
        let (count, in_use) = match fixed {
            Some(count) => (count.clamp(1, LINKS_MAX), count.clamp(1, LINKS_MAX)),
            None => (LINKS_MAX, 1),
        };
        Links {
            all: (0..count).map(|_| link()).collect(),
            fixed: fixed.is_some(),
            in_use: AtomicUsize::new(in_use.into()),
            next: AtomicUsize::new(0),
            bulk_bytes: AtomicU64::new(0),
            round_trip_nanos: AtomicU64::new(u64::MAX),
        }
    }

    /// The first link.
    pub(crate) fn first(&self) -> &Link {
        &self.all[0]
    }

    /// A link by its number.
    pub(crate) fn get(&self, number: usize) -> &Link {
        &self.all[number % self.all.len()]
    }

    /// The number of the next link in turn. Instead of a further one without a connection, the first.
    pub(crate) fn turn(&self) -> usize {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.in_use.load(Ordering::Relaxed);
        let link = self.get(number);
        if number == 0 || self.fixed || link.connected().up {
            return number;
        }
        link.prepare();
        0
    }

    /// The number of calls that wait for an answer.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.all.iter().map(Link::calls_in_flight).sum()
    }

    /// A call was answered after this time.
    pub(crate) fn answered(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip_nanos.fetch_min(nanos, Ordering::Relaxed);
    }

    /// A READ or WRITE of so many bytes is about to be sent. They count as in flight until the result is
    /// dropped.
    pub(crate) fn carry(&self, bytes: u32) -> Carried<'_> {
        let bytes = u64::from(bytes);
        let in_flight = self.bulk_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let round_trip = Duration::from_nanos(self.round_trip_nanos.load(Ordering::Relaxed));
        let wanted = wanted(in_flight, round_trip).min(self.all.len());
        self.in_use.fetch_max(wanted, Ordering::Relaxed);
        Carried { of: self, bytes }
    }
}

/// How many connections so many bytes in flight need.
fn wanted(in_flight: u64, round_trip: Duration) -> usize {
    if round_trip <= NEAR {
        return 1;
    }
    usize::try_from(in_flight.div_ceil(LINK_BYTES)).unwrap_or(usize::MAX)
}

/// Bytes of a READ or WRITE in flight.
#[derive(Debug)]
pub(crate) struct Carried<'l> {
    of: &'l Links,
    bytes: u64,
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        self.of.bulk_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::LinkOptions;

    fn links(nconnect: Option<u8>, transport: Transport) -> Links {
        let options = Options { nconnect, ..Options::default() };
        let server = ([127, 0, 0, 1], 9).into();
        Links::new(&options, transport, || Link::new(LinkOptions::new(server)))
    }

    /// The links that are used, after so many READs of 1 MiB were in flight at a time.
    fn in_use(links: &Links, reads: usize) -> usize {
        let carried: Vec<_> = (0..reads).map(|_| links.carry(1 << 20)).collect();
        drop(carried);
        assert_eq!(links.bulk_bytes.load(Ordering::Relaxed), 0);
        if !links.fixed {
            assert!((0..100).all(|_| links.turn() == 0), "no further connection stands");
        }
        links.in_use.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn more_bytes_in_flight_take_more_connections() {
        let links = links(None, Transport::Tcp);
        assert_eq!(in_use(&links, 1), 1);
        links.answered(Duration::from_millis(40));
        assert_eq!((in_use(&links, 4), in_use(&links, 5)), (1, 2));
        assert_eq!((in_use(&links, 40), in_use(&links, 400)), (10, 16));
        assert_eq!(in_use(&links, 1), 16, "the number never falls");
    }

    #[tokio::test]
    async fn within_a_site_one_connection_is_enough() {
        let links = links(None, Transport::Tcp);
        links.answered(Duration::from_micros(200));
        assert_eq!(in_use(&links, 400), 1);
    }

    #[tokio::test]
    async fn nconnect_fixes_their_number() {
        for (nconnect, transport, number) in
            [(Some(3), Transport::Tcp, 3), (None, Transport::Udp, 1), (Some(2), Transport::Udp, 2)]
        {
            let links = links(nconnect, transport);
            links.answered(Duration::from_millis(40));
            assert_eq!(in_use(&links, 400), number);
        }
    }
}
