//! The ids that clients get, under a secret key: a client can neither make an id nor guess another
//! client's.
//!
//! The tables number clients, states and sessions. On the wire, a permutation (a Feistel network over
//! `SipHash`) hides the numbers of the client and the state together with the epoch of the server. If this
//! incarnation did not give out an id, it decodes to another epoch, except with a probability of one in
//! 2³².
//!
//! Session ids and verifiers are only compared, so they are hashes. The key is new in each incarnation: no
//! id outlives it, and clients come back by their names.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use protocol::nfs4::{Clientid, Sessionid, Verifier};
use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher128};

/// Rounds over halves of 32 bits.
const CLIENT_ROUNDS: u64 = 8;
/// Rounds over halves of 48 bits. Fewer, because every READ and WRITE runs this permutation.
const STATE_ROUNDS: u64 = 4;
const MASK_48: u64 = (1 << 48) - 1;

/// The purpose of a hash. Each purpose has its own values.
#[derive(Clone, Copy)]
enum Use {
    Client = 1,
    State = 2,
    Session = 3,
    Verifier = 4,
}

/// The key of one server incarnation.
#[derive(Clone, Copy)]
pub(crate) struct IdKey(u64, u64);

impl fmt::Debug for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdKey")
    }
}

impl IdKey {
    /// A fixed key for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) const fn of(first: u64, second: u64) -> IdKey {
        IdKey(first, second)
    }

    /// A new key.
    pub(crate) fn random() -> IdKey {
        let mut bytes = [[0; 8]; 2];
        if getrandom::fill(bytes.as_flattened_mut()).is_err() {
            // The standard library reads the system's randomness in its own way.
            bytes = [1, 2].map(|half: u64| RandomState::new().hash_one(half).to_be_bytes());
        }
        let [first, second] = bytes.map(u64::from_be_bytes);
        IdKey(first, second)
    }

    fn hash(self, purpose: Use, round: u64, value: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        hasher.write_u64((purpose as u64) << 32 | round);
        hasher.write_u64(value);
        hasher.finish()
    }

    /// The id of the client with this number in this epoch.
    pub(crate) fn client(self, epoch: u32, number: u32) -> Clientid {
        let mut halves = (u64::from(epoch), u64::from(number));
        for round in 0..CLIENT_ROUNDS {
            let mixed = halves.0 ^ self.hash(Use::Client, round, halves.1) & u64::from(u32::MAX);
            halves = (halves.1, mixed);
        }
        halves.0 << 32 | halves.1
    }

    /// The number of a client, if the id is of this epoch.
    pub(crate) fn client_number(self, epoch: u32, id: Clientid) -> Option<u32> {
        let mut halves = (id >> 32, id & u64::from(u32::MAX));
        for round in (0..CLIENT_ROUNDS).rev() {
            let mixed = halves.1 ^ self.hash(Use::Client, round, halves.0) & u64::from(u32::MAX);
            halves = (mixed, halves.0);
        }
        (halves.0 == u64::from(epoch)).then_some(halves.1 as u32)
    }

    /// The `other` field of the state id of a client's state.
    pub(crate) fn state(self, epoch: u32, client: u32, state: u32) -> [u8; 12] {
        let (epoch, client, state) = (u64::from(epoch), u64::from(client), u64::from(state));
        let mut halves = (epoch << 16 | client >> 16, (client & 0xffff) << 32 | state);
        for round in 0..STATE_ROUNDS {
            let mixed = halves.0 ^ self.hash(Use::State, round, halves.1) & MASK_48;
            halves = (halves.1, mixed);
        }
        let mut other = [0; 12];
        other[..6].copy_from_slice(&halves.0.to_be_bytes()[2..]);
        other[6..].copy_from_slice(&halves.1.to_be_bytes()[2..]);
        other
    }

    /// The numbers of a client and its state, if `other` is of this epoch.
    pub(crate) fn state_numbers(self, epoch: u32, other: [u8; 12]) -> Option<(u32, u32)> {
        let all = other.iter().fold(0u128, |all, byte| all << 8 | u128::from(*byte));
        let mut halves = ((all >> 48) as u64, all as u64 & MASK_48);
        for round in (0..STATE_ROUNDS).rev() {
            let mixed = halves.1 ^ self.hash(Use::State, round, halves.0) & MASK_48;
            halves = (mixed, halves.0);
        }
        let client = (halves.0 & 0xffff) << 16 | halves.1 >> 32;
        (halves.0 >> 16 == u64::from(epoch)).then_some((client as u32, halves.1 as u32))
    }

    /// The id of the session with this number.
    pub(crate) fn session(self, number: u64) -> Sessionid {
        let mut hasher = SipHasher128::new_with_keys(self.0, self.1);
        hasher.write_u64((Use::Session as u64) << 32);
        hasher.write_u64(number);
        hasher.finish128().as_bytes()
    }

    /// The verifier that SETCLIENTID_CONFIRM must carry.
    pub(crate) fn verifier(self, number: u64) -> Verifier {
        self.hash(Use::Verifier, 0, number).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_come_back_in_their_life_alone(first: u64, second: u64, epoch: u32, client: u32, state: u32) {
            let key = IdKey(first, second);
            let id = key.client(epoch, client);
            prop_assert_eq!(key.client_number(epoch, id), Some(client));
            prop_assert_eq!(key.client_number(epoch ^ 1, id), None);
            let other = key.state(epoch, client, state);
            prop_assert_eq!(key.state_numbers(epoch, other), Some((client, state)));
            prop_assert_eq!(key.state_numbers(epoch ^ 1, other), None);
        }

        /// No single-bit change of an id gives another valid id, so ids cannot be derived from each other.
        #[test]
        fn a_changed_id_is_none(first: u64, second: u64, bit in 0usize..96) {
            let key = IdKey(first, second);
            let mut other = key.state(7, 1, 1);
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(key.state_numbers(7, other), None);
            let id = key.client(7, 1) ^ 1 << (bit % 64);
            prop_assert_eq!(key.client_number(7, id), None);
        }
    }

    #[test]
    fn what_one_key_made_another_does_not_read() {
        let (key, next) = (IdKey::random(), IdKey::random());
        assert_eq!(next.client_number(7, key.client(7, 1)), None);
        assert_eq!(next.state_numbers(7, key.state(7, 1, 1)), None);
        assert_ne!(next.session(1), key.session(1));
        assert_ne!(next.verifier(1), key.verifier(1));
        assert_ne!(key.session(1), key.session(2));
    }
}
