//! The combinations of shares that the OPENs of one open have asked for. OPEN_DOWNGRADE may name these and
//! unions of them (RFC 8881, section 18.18.3).

use vfs::Share;

/// One bit for each of the sixteen combinations of access and deny.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Combinations(u16);

impl Combinations {
    fn bit(access: Share, deny: Share) -> u16 {
        1 << (u16::from(access.bits()) | u16::from(deny.bits()) << 2)
    }

    /// Notes that an OPEN asked for this combination.
    pub(crate) fn add(&mut self, access: Share, deny: Share) {
        self.0 |= Combinations::bit(access, deny);
    }

    /// Removes the combinations that exceed these shares.
    pub(crate) fn narrow(&mut self, access: Share, deny: Share) {
        let left = self.iter().filter(|(a, d)| access.contains(*a) && deny.contains(*d));
        self.0 = left.fold(0, |bits, (access, deny)| bits | Combinations::bit(access, deny));
    }

    /// All combinations.
    pub(crate) fn iter(self) -> impl Iterator<Item = (Share, Share)> {
        let share = |bits: u16| Share::from_bits_truncate((bits & 3) as u8);
        (0..16).filter(move |at| self.0 & 1 << at != 0).map(move |at| (share(at), share(at >> 2)))
    }

    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    pub(crate) fn from_bits(bits: u16) -> Combinations {
        Combinations(bits)
    }
}
