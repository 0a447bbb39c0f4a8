//! Access control lists, and extended attributes (RFC 8276).

use bytes::Bytes;
use protocol::nfs4::{
    Ace as WireAce, Acl as WireAcl, ArgFattr, ArgOp, Attr, Bitmap, Component, Failure, Fattr, Limited,
    ListxattrsArgs, Op, Operation, SetattrArgs, SetxattrArgs, SetxattrOption, Stateid, XattrArgs, XattrValue,
    op,
};
use vfs::{Ace, Acl, Caller, Features, Handle, ListedXattrs, Result, Status, Wcc, XattrHow, XattrName};

use super::attributes::{Around, getattr, getattr_all, put};
use super::execute::{Plan, status_of};
use super::state::{State, Used};
use super::{Nfs4Client, convert};

fn key(name: &XattrName) -> Component {
    Component::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_default()
}

impl Nfs4Client {
    pub(super) async fn get_acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        let build = |_: &State| Ok((vec![put(handle)?, getattr(Bitmap::of(&[Attr::Acl]))], Used::Nothing));
        let mut results = self.run(caller, Plan::reading(Operation::Getattr), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let came = self.take::<op::Getattr>(&mut results)?.obj_attributes.acl.ok_or(Status::NotSupp)?;
        let ace = |ace: WireAce| Ace {
            kind: ace.acetype,
            flags: ace.flag,
            mask: ace.access_mask,
            who: ace.who.into_bytes(),
        };
        Ok(Acl(came.into_vec().into_iter().map(ace).collect()))
    }

    pub(super) async fn put_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let ace = |ace: &Ace| {
            let who = Limited::new(ace.who.clone())?;
            Some(WireAce { acetype: ace.kind, flag: ace.flags, access_mask: ace.mask, who })
        };
        let aces: Option<Vec<WireAce>> = acl.0.iter().map(ace).collect();
        let acl = aces.and_then(WireAcl::new).ok_or(Status::Inval)?;
        let build = |_: &State| {
            let obj_attributes = ArgFattr::from(Fattr { acl: Some(acl.clone()), ..Fattr::default() });
            let set = op::Setattr::with(SetattrArgs { stateid: Stateid::ANONYMOUS, obj_attributes });
            Ok((vec![put(handle)?, set, getattr_all()], Used::Nothing))
        };
        let mut results = self.run(caller, Plan::changing(Operation::Setattr), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        match results.result::<op::Setattr>().map_err(|error| self.failed(&error))? {
            Ok(_) => Ok(Wcc::seen(self.attributes_after(&mut results, handle, None)?)),
            Err(failure) => {
                debug_assert!(failure.status() == failure.status);
                Err(status_of(&failure).into())
            }
        }
    }

    pub(super) async fn get_xattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
    ) -> Result<Bytes> {
        self.offers(Features::XATTR)?;
        let build = |_: &State| {
            Ok((vec![put(handle)?, op::Getxattr::with(XattrArgs { name: key(name) })], Used::Nothing))
        };
        let mut results = self.run(caller, Plan::reading(Operation::Getxattr), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let got = self.take::<op::Getxattr>(&mut results);
        Ok(self.learn(Features::XATTR, got)?.value.into_bytes())
    }

    pub(super) async fn set_xattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let option = match how {
            XattrHow::Either => SetxattrOption::Either,
            XattrHow::Create => SetxattrOption::Create,
            XattrHow::Replace => SetxattrOption::Replace,
        };
        let value = XattrValue::new(value).ok_or(Status::XattrTooBig)?;
        let set = op::Setxattr::with(SetxattrArgs { option, key: key(name), value });
        self.change_xattr::<op::Setxattr>(caller, handle, set).await
    }

    pub(super) async fn remove_xattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
    ) -> Result<Wcc> {
        let remove = op::Removexattr::with(XattrArgs { name: key(name) });
        self.change_xattr::<op::Removexattr>(caller, handle, remove).await
    }

    async fn change_xattr<O>(&self, caller: &Caller, handle: &Handle, change: ArgOp) -> Result<Wcc>
    where
        O: Op<ResOp = protocol::nfs4::ResOp, Ok = protocol::nfs4::XattrChangedOk>,
    {
        self.offers(Features::XATTR)?;
        let build = |_: &State| {
            let operations = vec![put(handle)?, getattr(convert::BEFORE), change.clone(), getattr_all()];
            Ok((operations, Used::Nothing))
        };
        let mut results = self.run(caller, Plan::changing(O::OPERATION), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let before = self.take_before(&mut results)?;
        let changed = self.take::<O>(&mut results);
        let cinfo = self.learn(Features::XATTR, changed)?.cinfo;
        let after = self.attributes_after(&mut results, handle, None)?;
        Ok(Around { before, cinfo }.with(after))
    }

    pub(super) async fn list_xattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        self.offers(Features::XATTR)?;
        let args = ListxattrsArgs { cookie, maxcount: bytes.clamp(1024, self.export().read_max) };
        let build = |_: &State| Ok((vec![put(handle)?, op::Listxattrs::with(args)], Used::Nothing));
        let mut results = self.run(caller, Plan::reading(Operation::Listxattrs), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let listed = self.take::<op::Listxattrs>(&mut results);
        let ok = self.learn(Features::XATTR, listed)?;
        let names: Result<Vec<XattrName>> = ok.names.iter().map(|name| XattrName::new(name)).collect();
        let names = names.map_err(|_| self.nonsense(Operation::Listxattrs, "a name that is none"))?;
        if names.is_empty() && !ok.eof {
            return Err(self.nonsense(Operation::Listxattrs, "no names, and not the end of them"));
        }
        Ok(ListedXattrs { names, cookie: ok.cookie, eof: ok.eof })
    }
}
