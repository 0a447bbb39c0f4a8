//! MKDIR with a delegation of the new directory. A directory is usually filled by its maker, so the compound
//! that makes it asks for the delegation. Under the delegation it shows that the maker has every right, and
//! that nobody else has made a name in the directory yet. Without all of that, the delegation goes back.
//!
//! Only a server that is known to support GET_DIR_DELEGATION is asked: a failure ends the compound.

use std::sync::Arc;

use protocol::nfs4::{
    AccessArgs, ArgOp, Bitmap, CreateArgs, Createtype, Op, Operation, ReaddirArgs, Results, op,
};
use vfs::replay::{self, Made};
use vfs::{
    AccessMask, Attributes, Caller, Created, FileType, Handle, Lease, Name, Result, SetAttributes, Want,
};

use super::attributes::{DIRECTORY, getattr, getattr_all, put};
use super::delegating::get_dir_delegation;
use super::execute::Plan;
use super::state::{State, Used};
use super::{Nfs4, Nfs4Client, convert};

/// What a maker may do in its new directory, if the origin does not say otherwise.
const RIGHTS: AccessMask = AccessMask::READ
    .union(AccessMask::LOOKUP)
    .union(AccessMask::MODIFY)
    .union(AccessMask::EXTEND)
    .union(AccessMask::DELETE);
/// The largest listing of a new directory, in bytes. An empty one needs less, and the reply has to fit into
/// the server's reply cache.
const LISTING_BYTES: u32 = 512;

impl Nfs4 {
    /// MKDIR.
    pub(super) async fn make_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created> {
        let made = Made::Node { file_type: FileType::Directory, set };
        if want == Want::None || !self.inner.gives_new_directories() {
            return self.make(caller, (directory, name), Createtype::Dir, DIRECTORY, (set, made)).await;
        }
        let (inner, asker) = (self.inner.clone(), caller.clone());
        let (above, new, first) = (*directory, name.clone(), *set);
        let work = async move { Ok(inner.make_delegated(&asker, &above, &new, &first).await) };
        let undo = |inner: Arc<Nfs4Client>, (unheard, _): (Result<Created>, bool)| {
            if let Ok(Created { lease: Some(lease), .. }) = unheard {
                inner.return_soon(lease.id);
            }
        };
        match self.to_the_end(caller, work, undo).await? {
            (Err(failed), true) => replay::made(self, caller, directory, name, failed, made).await,
            (result, _) => result,
        }
    }
}

impl Nfs4Client {
    /// The flag is true if a failure may be due to an earlier execution.
    async fn make_delegated(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> (Result<Created>, bool) {
        // A recall may arrive before the answer.
        let _in_flight = self.back.opening();
        let set = SetAttributes { size: None, ..*set };
        let build = |_: &State| {
            let create = CreateArgs {
                objtype: Createtype::Dir,
                objname: convert::component(name),
                createattrs: convert::arg(&set),
            };
            let mut operations = vec![
                put(directory)?,
                getattr(convert::BEFORE),
                op::Savefh::with(()),
                op::Create::with(create),
                op::Getfh::with(()),
                getattr_all(),
            ];
            operations.extend(delegation());
            operations.extend([op::Restorefh::with(()), getattr_all()]);
            Ok((operations, Used::Nothing))
        };
        let ran = match self.run(caller, Plan::stateful(Operation::Create), build).await {
            Ok(ran) => ran,
            Err(failed) => return (Err(failed), false),
        };
        let between = |results: &mut Results, new: &Handle| self.take_delegation(caller, new, results);
        let created = match self.created(ran.results, directory, DIRECTORY, between) {
            Ok(fresh) => self.fill_in(caller, (directory, name), fresh).await,
            Err(failed) => Err(failed),
        };
        (created, ran.again)
    }

    /// Takes the results of [`delegation`].
    fn take_delegation(
        &self,
        caller: &Caller,
        new: &Handle,
        results: &mut Results,
    ) -> Option<(Lease, Attributes)> {
        let given = results.take::<op::GetDirDelegation>();
        let went_on = given.is_ok();
        let given = self.if_worth_asking(new, given);
        let promised = given.and_then(|given| self.hold_directory(caller, new, &given));
        let proof = if went_on { self.take_proof(new, results).ok() } else { None };
        self.vouched(promised, proof.flatten())
    }

    /// The attributes of the new directory, if its maker has every right and it is empty.
    fn take_proof(&self, new: &Handle, results: &mut Results) -> Result<Option<Attributes>> {
        let granted = AccessMask::from_bits_truncate(self.take::<op::Access>(results)?.access);
        let listing = self.take::<op::Readdir>(results)?;
        let attributes = self.attributes_after(results, new, DIRECTORY)?;
        let empty = listing.eof && listing.entries.into_vec().is_empty();
        Ok(attributes.filter(|_| empty && granted.contains(RIGHTS)))
    }

    fn gives_new_directories(&self) -> bool {
        self.back.listening() && self.backoff.are_worth_asking()
    }
}

/// With the new directory as the current filehandle.
fn delegation() -> [ArgOp; 4] {
    let listing = ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: LISTING_BYTES,
        maxcount: LISTING_BYTES,
        attr_request: Bitmap::EMPTY,
    };
    let access = AccessArgs { access: RIGHTS.bits() };
    [get_dir_delegation(), op::Access::with(access), op::Readdir::with(listing), getattr_all()]
}
