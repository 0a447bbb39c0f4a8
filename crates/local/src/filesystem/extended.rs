//! Access control lists, extended attributes, holes and copies in the directory.

use async_trait::async_trait;
use bytes::Bytes;
use vfs::{
    Acl, Caller, Copied, Extended, Extent, Handle, ListedXattrs, Place, Result, Sought, StateidBasis, Wcc,
    XattrHow, XattrName,
};

use crate::extents::{self, Reservation};
use crate::{LocalFs, acl, copy, xattr};

#[async_trait]
impl Extended for LocalFs {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        let node = self.node(handle).await?;
        let file = node.clone();
        let done = self.work(caller, move |tree, _| acl::get(tree, &file)).await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let node = self.node(handle).await?;
        let (file, acl) = (node.clone(), acl.clone());
        let done =
            self.change(caller, &[&node], move |tree, _, held| Ok(acl::set(tree, &file, &acl, held)?)).await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        let node = self.node(handle).await?;
        let (file, name) = (node.clone(), name.clone());
        let done = self.work(caller, move |tree, _| xattr::get(tree, &file, &name)).await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let node = self.node(handle).await?;
        let (file, name) = (node.clone(), name.clone());
        let done = self
            .change(caller, &[&node], move |tree, _, held| {
                Ok(xattr::set(tree, &file, &name, &value, how, held)?)
            })
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        let node = self.node(handle).await?;
        let file = node.clone();
        let done = self
            .work(caller, move |tree, principal| xattr::list(tree, principal, &file, cookie, bytes))
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        let node = self.node(handle).await?;
        let (file, name) = (node.clone(), name.clone());
        let done = self
            .change(caller, &[&node], move |tree, _, held| Ok(xattr::remove(tree, &file, &name, held)?))
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        let node = self.node(handle).await?;
        let right = self.tree.opens.right(by, handle, None)?;
        let file = node.clone();
        let done = self
            .work(caller, move |tree, principal| extents::seek(tree, (principal, right), &file, offset, what))
            .await;
        done.map_err(|status| self.failed(&node, status))
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.reserve(caller, at, length, Reservation::Allocate).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.reserve(caller, at, length, Reservation::Deallocate).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        self.between(caller, from, to, move |tree, principal, from, to, held| {
            copy::copy(tree, principal, from, to, count, held)
        })
        .await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        self.between(caller, from, to, move |tree, principal, from, to, held| {
            copy::clone_range(tree, principal, from, to, count, held)
        })
        .await
    }
}
