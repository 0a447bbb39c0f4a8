//! Space and holes: ALLOCATE, DEALLOCATE, IO_ADVISE, READ_PLUS, SEEK and WRITE_SAME (RFC 7862, sections 15.1, 15.4,
//! 15.5 and 15.10 to 15.12).

use xdr::{Bulk, List, Xdr};

use super::{Bitmap, StableHow, Stateid};

/// `ALLOCATE4args` and `DEALLOCATE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AllocateArgs {
    /// By what state.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// `IO_ADVISE4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct IoAdviseArgs {
    /// By what state.
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
    /// Those that are heeded.
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
    /// What SEEK does not look for: UNION_NOTSUPP.
    #[xdr(default)]
    Other(u32),
}

/// `SEEK4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SeekArgs {
    /// By what state.
    pub stateid: Stateid,
    /// From where.
    pub offset: u64,
    /// For what.
    pub what: DataContent,
}

/// `seek_res4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SeekOk {
    /// There is none up to the end of the file.
    pub eof: bool,
    /// Where it is.
    pub offset: u64,
}

/// `READ_PLUS4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadPlusArgs {
    /// By what state.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u32,
}

/// `read_plus_res4`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadPlusOk {
    /// The read reaches the end of the file.
    pub eof: bool,
    /// What is there, in order.
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
    /// By what state.
    pub stateid: Stateid,
    /// How durable the write must be before it is answered.
    pub stable: StableHow,
    /// What to write.
    pub adb: AppDataBlock,
}

/// `app_data_block4`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct AppDataBlock {
    /// First byte.
    pub offset: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// How many blocks.
    pub block_count: u64,
    /// Where in a block its number goes; all ones is nowhere.
    pub reloff_blocknum: u64,
    /// Number of the first block.
    pub block_num: u32,
    /// Where in a block the pattern goes.
    pub reloff_pattern: u64,
    /// The pattern.
    pub pattern: Bulk,
}
