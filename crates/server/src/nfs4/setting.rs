//! Attributes that a client sets: SETATTR, CREATE and OPEN (RFC 8881, section 5; RFC 8275).

use protocol::nfs4::{ArgFattr, Attr, Bitmap, Fattr, ModeUmask, Settime, Status};
use vfs::{Ace, Acl, SetAttributes, SetTime};

use super::attributes::SETTABLE;
use super::convert;
use super::owners::{self, Kind, Names};

/// All valid permission bits.
const MODE_BITS: u32 = 0o7777;

/// The attributes that a client wants to set, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Setting {
    /// All but the access control list.
    pub(crate) set: SetAttributes,
    /// The access control list.
    pub(crate) acl: Option<Acl>,
    /// The attributes that are set, for the reply.
    pub(crate) asked: Bitmap,
}

impl Setting {
    /// For a new object. `supported` are the attributes of its file system.
    ///
    /// # Errors
    /// `AttrNotSupp` for an unsupported attribute; `Inval` for an attribute that cannot be set and for a
    /// bad value; `BadOwner`; `Delay` if the name of an owner cannot be looked up.
    pub(crate) async fn of_new(
        names: &Names,
        attributes: &ArgFattr,
        supported: Bitmap,
    ) -> Result<Setting, Status> {
        let attributes = attributes.known().map_err(|_| Status::AttrNotSupp)?;
        let asked = attributes.attributes();
        if !(asked - supported).is_empty() {
            return Err(Status::AttrNotSupp);
        }
        if !(asked - SETTABLE).is_empty() {
            return Err(Status::Inval);
        }
        Ok(Setting {
            set: set(names, attributes).await?,
            acl: attributes.acl.as_ref().map(acl).transpose()?,
            asked,
        })
    }

    /// For an existing object.
    ///
    /// # Errors
    /// As of [`Setting::of_new`]; also `Inval` for a umask.
    pub(crate) async fn of_change(
        names: &Names,
        attributes: &ArgFattr,
        supported: Bitmap,
    ) -> Result<Setting, Status> {
        let setting = Setting::of_new(names, attributes, supported).await?;
        if setting.asked.contains(Attr::ModeUmask) { Err(Status::Inval) } else { Ok(setting) }
    }

    /// Is there nothing to set, except perhaps an access control list?
    pub(crate) fn is_plain(&self) -> bool {
        self.set == SetAttributes::default()
    }
}

async fn set(names: &Names, from: &Fattr) -> Result<SetAttributes, Status> {
    let number = async |owner: &Option<protocol::nfs4::Limited>, kind| match owner {
        Some(owner) => owners::number(names, owner, kind).await.map(Some),
        None => Ok(None),
    };
    Ok(SetAttributes {
        mode: mode(from)?,
        uid: number(&from.owner, Kind::User).await?,
        gid: number(&from.owner_group, Kind::Group).await?,
        size: from.size,
        atime: from.time_access_set.map(set_time).transpose()?,
        mtime: from.time_modify_set.map(set_time).transpose()?,
    })
}

fn mode(from: &Fattr) -> Result<Option<u32>, Status> {
    let (mode, umask) = match (from.mode, from.mode_umask) {
        (None, None) => return Ok(None),
        (Some(mode), None) => (mode, 0),
        (None, Some(ModeUmask { mode, umask })) => (mode, umask),
        (Some(_), Some(_)) => return Err(Status::Inval),
    };
    if mode & !MODE_BITS == 0 { Ok(Some(mode & !umask)) } else { Err(Status::Inval) }
}

fn set_time(time: Settime) -> Result<SetTime, Status> {
    Ok(match time {
        Settime::SetToServerTime => SetTime::Server,
        Settime::SetToClientTime(time) => SetTime::Client(convert::timestamp(time)?),
    })
}

fn acl(from: &protocol::nfs4::Acl) -> Result<Acl, Status> {
    if from.len() > Acl::MAX {
        return Err(Status::Inval);
    }
    let ace = |ace: &protocol::nfs4::Ace| Ace {
        kind: ace.acetype,
        flags: ace.flag,
        mask: ace.access_mask,
        who: ace.who.clone().into_bytes(),
    };
    Ok(Acl(from.iter().map(ace).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs4::attributes::supported;
    use protocol::nfs4::Nfstime;
    use vfs::{FsLimits, Timestamp};

    async fn of_new(fattr: Fattr) -> Result<Setting, Status> {
        let names = Names::default();
        Setting::of_new(&names, &ArgFattr::from(fattr), supported(2, &FsLimits::default())).await
    }

    #[tokio::test]
    async fn what_can_be_set_is_set() {
        let time = Settime::SetToClientTime(Nfstime { seconds: -5, nseconds: 7 });
        let fattr = Fattr {
            mode: Some(0o4755),
            owner: protocol::nfs4::Limited::new(&b"7@x"[..]),
            size: Some(9),
            time_access_set: Some(Settime::SetToServerTime),
            time_modify_set: Some(time),
            ..Fattr::default()
        };
        let asked = fattr.attributes();
        let set = SetAttributes {
            mode: Some(0o4755),
            uid: Some(7),
            gid: None,
            size: Some(9),
            atime: Some(SetTime::Server),
            mtime: Some(SetTime::Client(Timestamp::new(-5, 7))),
        };
        assert_eq!(of_new(fattr).await, Ok(Setting { set, acl: None, asked }));
    }

    #[tokio::test]
    async fn a_umask_takes_bits_off_new_objects_alone() {
        let fattr = Fattr { mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o027 }), ..Fattr::default() };
        let (names, args) = (Names::default(), ArgFattr::from(fattr.clone()));
        assert_eq!(of_new(fattr.clone()).await.unwrap().set.mode, Some(0o640));
        assert_eq!(
            Setting::of_change(&names, &args, supported(2, &FsLimits::default())).await,
            Err(Status::Inval)
        );
        assert_eq!(of_new(Fattr { mode: Some(0), ..fattr }).await, Err(Status::Inval));
        assert_eq!(
            Setting::of_new(&names, &args, supported(1, &FsLimits::default())).await,
            Err(Status::AttrNotSupp),
            "of minor version 2"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_set_is_told_apart_from_what_there_is_not() {
        let cases = [
            (Fattr { fileid: Some(1), ..Fattr::default() }, Status::Inval),
            (Fattr { archive: Some(true), ..Fattr::default() }, Status::AttrNotSupp),
            (Fattr { acl: Some(protocol::nfs4::Acl::default()), ..Fattr::default() }, Status::AttrNotSupp),
            (Fattr { mode: Some(0o10000), ..Fattr::default() }, Status::Inval),
            (
                Fattr {
                    time_modify_set: Some(Settime::SetToClientTime(Nfstime {
                        seconds: 0,
                        nseconds: 1 << 30,
                    })),
                    ..Fattr::default()
                },
                Status::Inval,
            ),
        ];
        for (fattr, status) in cases {
            assert_eq!(of_new(fattr.clone()).await, Err(status), "{:?}", fattr.attributes());
        }
    }
}
