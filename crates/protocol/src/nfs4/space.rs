//! Space and holes: ALLOCATE, DEALLOCATE, IO_ADVISE, READ_PLUS, SEEK and WRITE_SAME (RFC 7862, sections 15.1,
//! 15.4, 15.5 and 15.10 to 15.12).

use xdr::{Bulk, List, Xdr};

use super::{Bitmap, StableHow, Stateid};

/// `ALLOCATE4args` and `DEALLOCATE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AllocateArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// `IO_ADVISE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct IoAdviseArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u64,
    /// Numbers of `IO_ADVISE_type4`.
    pub hints: Bitmap,
}

/// `IO_ADVISE4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct IoAdviseOk {
    /// The hints that the server follows.
    pub hints: Bitmap,
}

/// `data_content4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum DataContent {
    /// `NFS4_CONTENT_DATA`
    #[xdr(case = 0)]
    Data,
    /// `NFS4_CONTENT_HOLE`
    #[xdr(case = 1)]
    Hole,
    /// A kind of content that SEEK does not support: UNION_NOTSUPP.
    #[xdr(default)]
    Other(u32),
}

/// `SEEK4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SeekArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// The offset to start from.
    pub offset: u64,
    /// The kind of content to find.
    pub what: DataContent,
}

/// `seek_res4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SeekOk {
    /// True if there is no such content up to the end of the file.
    pub eof: bool,
    /// The offset of the content.
    pub offset: u64,
}

/// `READ_PLUS4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadPlusArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u32,
}

/// `read_plus_res4`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadPlusOk {
    /// True if the read reaches the end of the file.
    pub eof: bool,
    /// The data and holes, in order.
    pub contents: List<ReadPlusContent, 4096>,
}

/// `read_plus_content`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub enum ReadPlusContent {
    /// `data4`
    #[xdr(case = 0)]
    Data {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bulk,
    },
    /// `data_info4`: a hole.
    #[xdr(case = 1)]
    Hole {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// `WRITE_SAME4args`; the result is a [`WriteResponse`](super::WriteResponse).
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct WriteSameArgs {
    /// The stateid basis.
    pub stateid: Stateid,
    /// How durable the write must be before the server replies.
    pub stable: StableHow,
    /// The data to write.
    pub adb: AppDataBlock,
}

/// `app_data_block4`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct AppDataBlock {
    /// First byte.
    pub offset: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Offset of the block number in a block; all ones means that it is not written.
    pub reloff_blocknum: u64,
    /// Number of the first block.
    pub block_num: u32,
    /// Offset of the pattern in a block.
    pub reloff_pattern: u64,
    /// The pattern.
    pub pattern: Bulk,
}
