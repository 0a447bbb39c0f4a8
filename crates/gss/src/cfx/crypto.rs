//! AES with SHA-1 in Kerberos (RFC 3961, section 5.3; RFC 3962): keys derived for each use, signatures of 96
//! bits, and CBC with ciphertext stealing.

use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use hmac::{Hmac, Mac};
use sha1::Sha1;

use super::Key;

/// `aes128-cts-hmac-sha1-96` and `aes256-cts-hmac-sha1-96`, with the bytes of their keys.
const ENCRYPTIONS: [(u32, usize); 2] = [(17, 16), (18, 32)];
const BLOCK_BYTES: usize = 16;
/// Random bytes in front of what is encrypted.
pub(crate) const CONFOUNDER_BYTES: usize = BLOCK_BYTES;
/// A signature: 96 bits of HMAC-SHA1.
pub(crate) const MAC_BYTES: usize = 12;

/// The well-known constants of section 5.3: a key that signs alone, that encrypts, that signs what is
/// encrypted.
#[derive(Clone, Copy)]
enum Purpose {
    Checksum = 0x99,
    Encryption = 0xaa,
    Integrity = 0x55,
}

enum Aes {
    Of128(Box<Aes128>),
    Of256(Box<Aes256>),
}

impl Aes {
    /// `None` for a key of another length.
    fn new(key: &[u8]) -> Option<Aes> {
        match key.len() {
            16 => Aes128::new_from_slice(key).ok().map(|aes| Aes::Of128(Box::new(aes))),
            32 => Aes256::new_from_slice(key).ok().map(|aes| Aes::Of256(Box::new(aes))),
            _ => None,
        }
    }

    fn encrypt(&self, block: &mut Block) {
        match self {
            Aes::Of128(aes) => aes.encrypt_block(block),
            Aes::Of256(aes) => aes.encrypt_block(block),
        }
    }

    /// Decrypts blocks that do not depend on each other, several at a time.
    fn decrypt(&self, blocks: &mut [Block]) {
        match self {
            Aes::Of128(aes) => aes.decrypt_blocks(blocks),
            Aes::Of256(aes) => aes.decrypt_blocks(blocks),
        }
    }
}

/// `DK` of RFC 3961, section 5.1. `None` for a key of another encryption.
fn derive(key: &Key, usage: u32, purpose: Purpose) -> Option<Vec<u8>> {
    let known =
        |(encryption, bytes): &(u32, usize)| *encryption == key.encryption && *bytes == key.bytes.len();
    ENCRYPTIONS.iter().find(|encryption| known(encryption))?;
    let aes = Aes::new(&key.bytes)?;
    let mut constant = usage.to_be_bytes().to_vec();
    constant.push(purpose as u8);
    let mut block = GenericArray::from(n_fold(&constant));
    let mut derived = Vec::with_capacity(key.bytes.len());
    while derived.len() < key.bytes.len() {
        aes.encrypt(&mut block);
        derived.extend_from_slice(&block);
    }
    Some(derived)
}

/// The n-fold of RFC 3961, section 5.1. Each copy of the input is rotated by 13 bits more than the last. The
/// copies are cut into pieces of the wanted length, which are added with end-around carry.
fn n_fold<const N: usize>(input: &[u8]) -> [u8; N] {
    let bits = input.len() * 8;
    let bit = |at: usize| usize::from(input[at / 8] >> (7 - at % 8) & 1);
    let common = lcm(input.len(), N);
    let mut sum = [0usize; N];
    for byte in 0..common {
        let copy = byte / input.len();
        let value = (0..8).fold(0, |value, low| {
            let at = (byte % input.len()) * 8 + low;
            value << 1 | bit((at + bits * copy - 13 * copy % bits) % bits)
        });
        sum[byte % N] += value;
    }
    let mut carry = 0;
    loop {
        for byte in sum.iter_mut().rev() {
            let value = *byte + carry;
            (*byte, carry) = (value & 0xff, value >> 8);
        }
        if carry == 0 {
            return sum.map(|byte| byte as u8);
        }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Signs messages with one key.
pub(crate) struct Signer(Hmac<Sha1>);

impl Signer {
    /// The key that signs without encryption. `None` for a key of another encryption.
    pub(crate) fn of(key: &Key, usage: u32) -> Option<Signer> {
        Signer::with(key, usage, Purpose::Checksum)
    }

    fn with(key: &Key, usage: u32, purpose: Purpose) -> Option<Signer> {
        <Hmac<Sha1> as Mac>::new_from_slice(&derive(key, usage, purpose)?).ok().map(Signer)
    }

    fn over(&self, parts: &[&[u8]]) -> Hmac<Sha1> {
        let mut hmac = self.0.clone();
        parts.iter().for_each(|part| hmac.update(part));
        hmac
    }

    pub(crate) fn sign(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&self.over(parts).finalize().into_bytes()[..MAC_BYTES]);
        mac
    }

    /// Takes the same time for every wrong signature.
    pub(crate) fn verifies(&self, parts: &[&[u8]], mac: &[u8]) -> bool {
        mac.len() == MAC_BYTES && self.over(parts).verify_truncated_left(mac).is_ok()
    }
}

/// Encrypts and signs messages with one key.
pub(crate) struct Sealer {
    aes: Aes,
    signer: Signer,
}

impl Sealer {
    /// `None` for a key of another encryption.
    pub(crate) fn of(key: &Key, usage: u32) -> Option<Sealer> {
        let aes = Aes::new(&derive(key, usage, Purpose::Encryption)?)?;
        Some(Sealer { aes, signer: Signer::with(key, usage, Purpose::Integrity)? })
    }

    /// The header in plain text, the encrypted message and trailer, and the signature.
    pub(crate) fn seal(
        &self,
        header: &[u8],
        message: &[u8],
        trailer: &[u8],
    ) -> Result<Vec<u8>, getrandom::Error> {
        let length = CONFOUNDER_BYTES + message.len() + trailer.len();
        let mut token = Vec::with_capacity(header.len() + length + MAC_BYTES);
        token.extend_from_slice(header);
        token.resize(header.len() + CONFOUNDER_BYTES, 0);
        getrandom::fill(&mut token[header.len()..])?;
        token.extend_from_slice(message);
        token.extend_from_slice(trailer);
        let mac = self.signer.sign(&[&token[header.len()..]]);
        self.encrypt(&mut token[header.len()..]);
        token.extend_from_slice(&mac);
        Ok(token)
    }

    /// The confounder, the message and the trailer. `None` if the signature is wrong.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let length = sealed.len().checked_sub(MAC_BYTES).filter(|length| *length >= 2 * BLOCK_BYTES)?;
        let (encrypted, mac) = sealed.split_at(length);
        let plain = self.decrypt(encrypted);
        self.signer.verifies(&[&plain], mac).then_some(plain)
    }

    /// CBC with the last two blocks exchanged, and the shorter of them cut (RFC 3962, section 5). The
    /// initial vector is 0. There are two blocks at least.
    fn encrypt(&self, bytes: &mut [u8]) {
        let rest = (bytes.len() - 1) % BLOCK_BYTES + 1;
        let whole = bytes.len() - rest;
        let mut before = Block::default();
        for chunk in bytes[..whole].chunks_exact_mut(BLOCK_BYTES) {
            let block = Block::from_mut_slice(chunk);
            add(block, &before);
            self.aes.encrypt(block);
            before = *block;
        }
        let mut last = Block::default();
        last[..rest].copy_from_slice(&bytes[whole..]);
        add(&mut last, &before);
        self.aes.encrypt(&mut last);
        bytes[whole - BLOCK_BYTES..whole].copy_from_slice(&last);
        bytes[whole..].copy_from_slice(&before[..rest]);
    }

    fn decrypt(&self, bytes: &[u8]) -> Vec<u8> {
        let rest = (bytes.len() - 1) % BLOCK_BYTES + 1;
        let whole = bytes.len() - rest;
        let mut plain = bytes.to_vec();
        let mut blocks: Vec<Block> =
            bytes[..whole].chunks_exact(BLOCK_BYTES).map(Block::clone_from_slice).collect();
        self.aes.decrypt(&mut blocks);
        // All but the last two are as in CBC.
        let mut before = Block::default();
        let inner = blocks.len() - 1;
        for (index, block) in blocks[..inner].iter_mut().enumerate() {
            add(block, &before);
            let at = index * BLOCK_BYTES;
            before = Block::clone_from_slice(&bytes[at..at + BLOCK_BYTES]);
            plain[at..at + BLOCK_BYTES].copy_from_slice(block);
        }
        // The last block of CBC stands before the cut one, whose missing bytes it has.
        let mut cut = blocks[inner];
        let mut second = cut;
        second[..rest].copy_from_slice(&bytes[whole..]);
        add(&mut cut, &second);
        plain[whole..].copy_from_slice(&cut[..rest]);
        let mut blocks = [second];
        self.aes.decrypt(&mut blocks);
        add(&mut blocks[0], &before);
        plain[whole - BLOCK_BYTES..whole].copy_from_slice(&blocks[0]);
        plain
    }
}

fn add(to: &mut Block, other: &Block) {
    to.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn folds_are_those_of_the_rfc() {
        // RFC 3961, appendix A.1.
        assert_eq!(n_fold::<8>(b"012345").to_vec(), hex("be072631276b1955"));
        assert_eq!(n_fold::<7>(b"password").to_vec(), hex("78a07b6caf85fa"));
        assert_eq!(n_fold::<8>(b"Rough Consensus, and Running Code").to_vec(), hex("bb6ed30870b7f0e0"));
        assert_eq!(n_fold::<21>(b"password").to_vec(), hex("59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"));
        assert_eq!(n_fold::<16>(b"kerberos").to_vec(), hex("6b65726265726f737b9b5b2b93132b93"));
    }

    fn sealer(key: &[u8]) -> Sealer {
        let signer = Signer(<Hmac<Sha1> as Mac>::new_from_slice(b"key").unwrap());
        Sealer { aes: Aes::new(key).unwrap(), signer }
    }

    #[test]
    fn ciphertext_is_that_of_the_rfc() {
        // RFC 3962, appendix B.
        let sealer = sealer(b"chicken teriyaki");
        let text = b"I would like the General Gau's Chicken, please, and wonton soup.";
        for (length, expected) in [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f 97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed22 97687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a8 97687268d6ecccc0c07b25e25ecfe584"),
            (
                47,
                "97687268d6ecccc0c07b25e25ecfe584 b3fffd940c16a18c1b5549d2f838029e 39312523a78662d5be7fcbcc98ebf5",
            ),
            (
                64,
                "97687268d6ecccc0c07b25e25ecfe584 39312523a78662d5be7fcbcc98ebf5a8 \
                 4807efe836ee89a526730dbc2f7bc840 9dad8bbb96c4cdc03bc103e1a194bbd8",
            ),
        ] {
            let mut bytes = text[..length].to_vec();
            sealer.encrypt(&mut bytes);
            assert_eq!(bytes, hex(expected), "{length} bytes");
            assert_eq!(sealer.decrypt(&bytes), &text[..length]);
        }
    }

    #[test]
    fn keys_of_other_encryptions_are_left_to_the_library() {
        for (encryption, bytes) in [(23, 16), (19, 16), (20, 32), (17, 32), (18, 16)] {
            let key = Key { encryption, bytes: vec![1; bytes] };
            assert!(Signer::of(&key, 23).is_none() && Sealer::of(&key, 22).is_none());
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_and_nothing_else(
            message in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<usize>(),
        ) {
            let key = Key { encryption: 18, bytes: (0..32).collect() };
            let sealer = Sealer::of(&key, 24).unwrap();
            let token = sealer.seal(b"head", &message, b"a trailer of 16!").unwrap();
            let opened = sealer.open(&token[4..]).unwrap();
            prop_assert_eq!(&opened[16..], &[&message[..], b"a trailer of 16!"].concat()[..]);
            let mut changed = token[4..].to_vec();
            let at = at % changed.len();
            changed[at] ^= 1;
            prop_assert!(sealer.open(&changed).is_none());
            prop_assert!(sealer.open(&token[4..4 + at]).is_none());
        }
    }
}
