//! The data of a READ, as the reply of any version takes it.

use vfs::Data;
use xdr::Bulk;

/// Data for a reply. A range of a file stays a range, so that it is sent with `sendfile`.
pub(crate) fn bulk(data: Data) -> Bulk {
    match data {
        Data::Bytes(bytes) => Bulk::Bytes(bytes),
        Data::File(range) => Bulk::File(xdr::FileRange {
            file: range.file,
            offset: range.offset,
            length: range.length,
            pin: range.pin,
        }),
    }
}
