//! READDIR (RFC 8881, section 18.23). `.` and `..` are never listed in v4.

use protocol::nfs4::{ReaddirArgs, ReaddirOk, Status};

use crate::nfs4::attributes;
use crate::nfs4::compound::{Compound, File};
use crate::nfs4::directory::{self, Part};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ReaddirArgs,
) -> Result<ReaddirOk, Status> {
    let file = compound.file()?.clone();
    attributes::readable(args.attr_request)?;
    // Cookies 1 and 2 belong to `.` and `..`, which v4 does not list. A request without a cookie has no
    // verifier.
    if matches!(args.cookie, 1 | 2) || (args.cookie == 0 && args.cookieverf != [0; 8]) {
        return Err(Status::BadCookie);
    }
    let part = Part::new(compound, &args)?;
    match file {
        File::Pseudo(node) => directory::of_node(compound, node, part).await,
        File::Object(export, handle) => directory::of_export(compound, &export, &handle, part).await,
        File::Absent(_) => Err(Status::Moved),
    }
}
