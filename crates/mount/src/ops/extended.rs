//! Extended attributes: `user.*` of RFC 8276, and `system.nfs4_acl`. The latter is the access control list
//! in the format of nfs4-acl-tools (the `acl` attribute as on the wire).
//!
//! If the origin has neither, the reply is ENOSYS, and the kernel stops asking.

use bytes::Bytes;
use rustix::io::Errno;
use vfs::{Ace, Acl, Features, XattrHow, XattrName};

use crate::credentials::caller;
use crate::errno;
use crate::front::Front;
use crate::wire::reply::{Answer, Outcome};
use crate::wire::request::Header;

const ACL: &[u8] = b"system.nfs4_acl";
const USER: &[u8] = b"user.";
/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`
const BYTES_MAX: usize = 65_536;
/// Limit of LISTXATTR calls for one listing; each asks for `BYTES_MAX` bytes.
const ROUNDS_MAX: usize = 64;
/// The longest `who` of an access control entry.
const WHO_MAX_BYTES: usize = 1024;

/// The object that an attribute name denotes.
enum Kind {
    User(XattrName),
    Acl,
}

impl Front {
    /// GETXATTR.
    pub async fn getxattr(&self, header: &Header, name: &[u8], size: u32) -> Outcome {
        let kind = self.kind(name)?;
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let value = match kind {
            Kind::User(name) => self.fs.getxattr(&caller, &inode.handle(), &name).await.map_err(errno::of)?,
            Kind::Acl => encode(&self.fs.acl(&caller, &inode.handle()).await.map_err(errno::of)?),
        };
        sized(value, size)
    }

    /// SETXATTR.
    pub async fn setxattr(&self, header: &Header, name: &[u8], value: Bytes, flags: u32) -> Outcome {
        let kind = self.kind(name)?;
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        match kind {
            Kind::User(name) => {
                let how = match flags as i32 {
                    libc::XATTR_CREATE => XattrHow::Create,
                    libc::XATTR_REPLACE => XattrHow::Replace,
                    _ => XattrHow::Either,
                };
                self.fs.setxattr(&caller, &inode.handle(), &name, value, how).await.map_err(errno::of)?;
            }
            Kind::Acl => {
                let acl = decode(&value).ok_or(Errno::INVAL)?;
                self.fs.set_acl(&caller, &inode.handle(), &acl).await.map_err(errno::of)?;
                // The origin derives the mode from the list.
                self.notifier.attributes(inode.number);
            }
        }
        Ok(Answer::Done)
    }

    /// REMOVEXATTR.
    pub async fn removexattr(&self, header: &Header, name: &[u8]) -> Outcome {
        let Kind::User(name) = self.kind(name)? else { return Err(Errno::OPNOTSUPP) };
        let inode = self.inode(header.node)?;
        self.fs.removexattr(&caller(header), &inode.handle(), &name).await.map_err(errno::of)?;
        Ok(Answer::Done)
    }

    /// LISTXATTR. As with the kernel's NFS client, the access control list is not listed.
    pub async fn listxattr(&self, header: &Header, size: u32) -> Outcome {
        if !self.has(Features::XATTR) {
            return if self.has(Features::ACL) { sized(Bytes::new(), size) } else { Err(Errno::NOSYS) };
        }
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let (mut names, mut cookie) = (Vec::new(), 0);
        for _ in 0..ROUNDS_MAX {
            let listed = self.fs.listxattrs(&caller, &inode.handle(), cookie, BYTES_MAX as u32).await;
            let listed = listed.map_err(errno::of)?;
            for name in &listed.names {
                names.extend_from_slice(USER);
                names.extend_from_slice(name.as_bytes());
                names.push(0);
            }
            cookie = listed.cookie;
            if listed.eof || names.len() > BYTES_MAX {
                break;
            }
        }
        sized(names.into(), size)
    }

    fn kind(&self, name: &[u8]) -> Result<Kind, Errno> {
        if !self.has(Features::XATTR) && !self.has(Features::ACL) {
            return Err(Errno::NOSYS);
        }
        if name == ACL && self.has(Features::ACL) {
            return Ok(Kind::Acl);
        }
        match name.strip_prefix(USER) {
            Some(name) if self.has(Features::XATTR) => {
                Ok(Kind::User(XattrName::new(name).map_err(errno::of)?))
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The value, or only its length if `size` is zero.
fn sized(value: Bytes, size: u32) -> Outcome {
    match size as usize {
        0 => Ok(Answer::Size(value.len() as u32)),
        room if room < value.len() => Err(Errno::RANGE),
        _ => Ok(Answer::Data(value)),
    }
}

/// The list as `nfsace4`s on the wire (RFC 8881, section 6.2.1).
fn encode(acl: &Acl) -> Bytes {
    let mut to = Vec::with_capacity(4 + acl.0.len() * 32);
    let word = |to: &mut Vec<u8>, word: u32| to.extend_from_slice(&word.to_be_bytes());
    word(&mut to, acl.0.len() as u32);
    for ace in &acl.0 {
        [ace.kind, ace.flags, ace.mask, ace.who.len() as u32].iter().for_each(|it| word(&mut to, *it));
        to.extend_from_slice(&ace.who);
        to.resize(to.len().next_multiple_of(4), 0);
    }
    to.into()
}

fn decode(value: &Bytes) -> Option<Acl> {
    let mut rest = &value[..];
    let word = |rest: &mut &[u8]| -> Option<u32> {
        let (word, behind) = rest.split_first_chunk::<4>()?;
        *rest = behind;
        Some(u32::from_be_bytes(*word))
    };
    let count = word(&mut rest)? as usize;
    if count > Acl::MAX {
        return None;
    }
    let mut aces = Vec::with_capacity(count);
    for _ in 0..count {
        let (kind, flags, mask) = (word(&mut rest)?, word(&mut rest)?, word(&mut rest)?);
        let length = word(&mut rest)? as usize;
        if length > WHO_MAX_BYTES {
            return None;
        }
        let who = Bytes::copy_from_slice(rest.get(..length)?);
        rest = rest.get(length.next_multiple_of(4)..)?;
        aces.push(Ace { kind, flags, mask, who });
    }
    rest.is_empty().then_some(Acl(aces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_comes_back_and_a_torn_one_does_not() {
        let ace =
            |who: &'static [u8]| Ace { kind: 0, flags: 1, mask: 0x16_01bf, who: Bytes::from_static(who) };
        let acl = Acl(vec![ace(b"OWNER@"), ace(b"a@b"), ace(b"")]);
        let bytes = encode(&acl);
        assert_eq!(decode(&bytes), Some(acl));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes.slice(..cut)), None);
        }
    }

    #[test]
    fn a_value_is_told_its_size_first() {
        let value = Bytes::from_static(b"abc");
        assert_eq!(sized(value.clone(), 0), Ok(Answer::Size(3)));
        assert_eq!(sized(value.clone(), 2), Err(Errno::RANGE));
        assert_eq!(sized(value.clone(), 3), Ok(Answer::Data(value)));
    }

    proptest! {
        #[test]
        fn no_value_is_too_strange(value in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&value.into());
        }
    }
}
