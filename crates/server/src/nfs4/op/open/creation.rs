//! `createhow4`: how OPEN creates a file, and which attributes it sets.

use protocol::nfs4::{Attr, Bitmap, Createhow, Status};
use vfs::{CreateHow, Opened, SetAttributes};

use crate::nfs4::attributes::NOT_EXCLUSIVE;
use crate::nfs4::compound::Compound;
use crate::nfs4::convert;
use crate::nfs4::setting::Setting;
use crate::shared::Object;

/// Attributes in which file systems may keep the verifier of an exclusive creation. The reply reports them,
/// so that the client sets them.
const VERIFIER_ATTRIBUTES: Bitmap = Bitmap::of(&[Attr::TimeAccess, Attr::TimeModify]);

/// How the file is created.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) how: CreateHow,
    pub(super) setting: Setting,
}

impl Creation {
    /// # Errors
    /// Those of [`Setting::of_new`]; `Inval` for an attribute that an exclusive creation cannot set.
    pub(super) async fn parse(
        compound: &mut Compound<'_>,
        object: &Object,
        how: &Createhow,
    ) -> Result<Creation, Status> {
        let (how, attributes) = match how {
            Createhow::Unchecked(attributes) => (CreateHow::Unchecked, attributes),
            Createhow::Guarded(attributes) => (CreateHow::Guarded, attributes),
            Createhow::Exclusive(verifier) => {
                let setting = Setting::default();
                return Ok(Creation { how: CreateHow::Exclusive(*verifier), setting });
            }
            Createhow::Exclusive41(_) if compound.minor == 0 => return Err(Status::BadXdr),
            Createhow::Exclusive41(both) => (CreateHow::Exclusive(both.verf), &both.attrs),
        };
        let supported = compound.supported(&object.export).await?;
        let setting = Setting::of_new(compound.shared.names(), attributes, supported).await?;
        if is_exclusive(how) && !(setting.asked & NOT_EXCLUSIVE).is_empty() {
            return Err(Status::Inval);
        }
        Ok(Creation { how, setting })
    }

    /// If the OPEN succeeds, was the file created by this OPEN or by an earlier attempt at it?
    pub(super) fn is_of_new(&self) -> bool {
        !matches!(self.how, CreateHow::Unchecked)
    }

    /// The attributes that the file system sets. It would also set any size on an existing file, but an
    /// UNCHECKED open may only truncate it. With an exclusive creation the file system sets no size.
    pub(super) fn set(&self) -> SetAttributes {
        let sized = |size: &u64| !is_exclusive(self.how) && (*size == 0 || self.is_of_new());
        let size = self.setting.set.size.filter(sized);
        SetAttributes { size, ..self.setting.set }
    }

    /// The attributes that the file system does not set at creation, other than an ACL.
    fn left(&self) -> SetAttributes {
        let new = is_exclusive(self.how);
        let size = self.setting.set.size.filter(|size| self.set().size.is_none() && !(new && *size == 0));
        SetAttributes { size, ..Default::default() }
    }

    /// Does the file system set all attributes at creation?
    pub(super) fn leaves_nothing(&self) -> bool {
        self.setting.acl.is_none() && self.left() == SetAttributes::default()
    }

    /// Sets the attributes that the file system has not set at creation.
    pub(super) async fn complete(&self, object: &Object, opened: &Opened) -> Result<(), Status> {
        let Object { export, caller, .. } = object;
        let left = self.left();
        if left != SetAttributes::default() {
            export.fs().setattr(caller, &opened.handle, &left, None).await.map_err(convert::error)?;
        }
        if let Some(acl) = &self.setting.acl {
            export.fs().set_acl(caller, &opened.handle, acl).await.map_err(convert::error)?;
        }
        Ok(())
    }

    /// The attributes that were set.
    pub(super) fn attrset(&self, created: bool) -> Bitmap {
        match self.how {
            CreateHow::Exclusive(_) => self.setting.asked | VERIFIER_ATTRIBUTES,
            CreateHow::Unchecked if !created && self.setting.set.size == Some(0) => Bitmap::of(&[Attr::Size]),
            CreateHow::Unchecked if !created => Bitmap::EMPTY,
            CreateHow::Unchecked | CreateHow::Guarded => self.setting.asked,
        }
    }
}

fn is_exclusive(how: CreateHow) -> bool {
    matches!(how, CreateHow::Exclusive(_))
}
