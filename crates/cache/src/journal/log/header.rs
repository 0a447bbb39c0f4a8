//! The header of a segment.

const MAGIC: &[u8; 8] = b"lhwrite2";
/// Its length in bytes.
pub const HEADER_BYTES: u64 = 32;
/// Where the number of synced bytes is.
pub const SYNCED_AT: u64 = 16;
/// Where the number is that says whether the journal is durable.
pub const DURABLE_AT: u64 = 24;

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The boot id of the machine when the segment was made.
    pub boot: u64,
    /// At least so many bytes of the segment are on the disk. It is itself not synced.
    pub synced: u64,
    /// Synced entries count after a restart of the machine.
    pub durable: bool,
}

impl Header {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let fields = [self.boot, self.synced, u64::from(self.durable)];
        bytes[..8].copy_from_slice(MAGIC);
        for (to, field) in bytes[8..].chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The header of a segment with this content. None if it is damaged, short, or of another version.
    pub fn decode(content: &[u8]) -> Option<Header> {
        let (magic, rest) = content.split_first_chunk::<8>()?;
        let (boot, rest) = rest.split_first_chunk::<8>()?;
        let (synced, rest) = rest.split_first_chunk::<8>()?;
        let (flags, _) = rest.split_first_chunk::<8>()?;
        let flags = u64::from_le_bytes(*flags);
        let (boot, synced) = (u64::from_le_bytes(*boot), u64::from_le_bytes(*synced));
        (magic == MAGIC && flags <= 1).then_some(Header { boot, synced, durable: flags == 1 })
    }
}
