//! `fattr4`: a bitmap and the values of the attributes in it, in the order of their numbers (RFC 8881, section 5).
//!
//! All lengths are known before anything is written, so that attributes go straight into the message: this is the
//! larger part of what GETATTR and READDIR cost.

mod value;

use xdr::{Decode, Decoder, Encode, Encoder, Error, List, Opaque};

use self::value::Value;
use super::{
    Acl, BODY_MAX, Bitmap, ChangeAttrType, ChangePolicy, FsLocations, Fsid, Ftype, Handle, LayoutHint,
    Limited, ModeMasked, ModeUmask, Nfsacl41, Nfstime, OpenArguments, Outcome, SecLabel, Settime, Specdata,
};

macro_rules! attributes {
    ($($(#[$doc:meta])* $attr:ident = $number:literal, $text:literal $(, $field:ident: $value:ty)?;)*) => {
        /// Attributes by number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Attr {
            $($(#[$doc])* $attr = $number,)*
        }

        impl Attr {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Attr] = &[$(Attr::$attr),*];

            /// The attribute with this number.
            pub const fn from_number(number: u32) -> Option<Attr> {
                match number {
                    $($number => Some(Attr::$attr),)*
                    _ => None,
                }
            }

            /// Its name in the RFC.
            pub const fn name(self) -> &'static str {
                match self { $(Attr::$attr => $text),* }
            }
        }

        attributes! { @fields $($($attr, $field: $value;)?)* }
    };
    (@fields $($attr:ident, $field:ident: $value:ty;)*) => {
        /// `fattr4`: what is `None` is not in it.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Fattr {
            $(#[doc = concat!("[`Attr::", stringify!($attr), "`]")] pub $field: Option<$value>,)*
        }

        impl Fattr {
            /// The attributes that have a field. All others are in the way of decoding.
            pub const FIELDS: Bitmap = Bitmap::of(&[$(Attr::$attr),*]);

            /// The attributes in it.
            pub fn attributes(&self) -> Bitmap {
                self.measure().0
            }

            /// Drops all attributes but these.
            pub fn retain(&mut self, attributes: Bitmap) {
                $(if !attributes.contains(Attr::$attr) {
                    self.$field = None;
                })*
            }

            /// The attributes in it, and the number of bytes of their values.
            fn measure(&self) -> (Bitmap, usize) {
                let mut bitmap = Bitmap::EMPTY;
                let mut bytes = 0;
                $(if let Some(value) = &self.$field {
                    bitmap.insert(Attr::$attr);
                    bytes += value.encoded_len();
                })*
                (bitmap, bytes)
            }

            fn encode_values(&self, encoder: &mut Encoder) {
                $(if let Some(value) = &self.$field {
                    value.encode(encoder);
                })*
            }

            fn decode_values(&mut self, bitmap: Bitmap, decoder: &mut Decoder) -> Result<(), Error> {
                $(if bitmap.contains(Attr::$attr) {
                    self.$field = Some(Decode::decode(decoder)?);
                })*
                Ok(())
            }
        }
    };
}

attributes! {
    /// Attributes that the file system has.
    SupportedAttrs = 0, "supported_attrs", supported_attrs: Bitmap;
    /// Type of the object.
    Type = 1, "type", ftype: Ftype;
    /// `FH4_*`: how long handles are good.
    FhExpireType = 2, "fh_expire_type", fh_expire_type: u32;
    /// Differs when data or attributes have changed.
    Change = 3, "change", change: u64;
    /// Size in bytes.
    Size = 4, "size", size: u64;
    /// Hard links can be made.
    LinkSupport = 5, "link_support", link_support: bool;
    /// Symbolic links can be made.
    SymlinkSupport = 6, "symlink_support", symlink_support: bool;
    /// The object has named attributes.
    NamedAttr = 7, "named_attr", named_attr: bool;
    /// File system.
    Fsid = 8, "fsid", fsid: Fsid;
    /// Two handles are never the same object.
    UniqueHandles = 9, "unique_handles", unique_handles: bool;
    /// The lease in seconds.
    LeaseTime = 10, "lease_time", lease_time: u32;
    /// Why READDIR cannot tell the others.
    RdattrError = 11, "rdattr_error", rdattr_error: Outcome;
    /// Access control list.
    Acl = 12, "acl", acl: Acl;
    /// `ACL4_SUPPORT_*`
    Aclsupport = 13, "aclsupport", aclsupport: u32;
    /// Was archived.
    Archive = 14, "archive", archive: bool;
    /// Times can be set.
    Cansettime = 15, "cansettime", cansettime: bool;
    /// Names differ in more than case.
    CaseInsensitive = 16, "case_insensitive", case_insensitive: bool;
    /// Names keep their case.
    CasePreserving = 17, "case_preserving", case_preserving: bool;
    /// Only the privileged may give files away.
    ChownRestricted = 18, "chown_restricted", chown_restricted: bool;
    /// Handle.
    Filehandle = 19, "filehandle", filehandle: Handle;
    /// Inode number.
    Fileid = 20, "fileid", fileid: u64;
    /// Inodes for this user.
    FilesAvail = 21, "files_avail", files_avail: u64;
    /// Inodes free.
    FilesFree = 22, "files_free", files_free: u64;
    /// Inodes.
    FilesTotal = 23, "files_total", files_total: u64;
    /// Where else the file system is.
    FsLocations = 24, "fs_locations", fs_locations: Box<FsLocations>;
    /// Is hidden.
    Hidden = 25, "hidden", hidden: bool;
    /// These attributes are the same in all of the file system.
    Homogeneous = 26, "homogeneous", homogeneous: bool;
    /// The largest file in bytes.
    Maxfilesize = 27, "maxfilesize", maxfilesize: u64;
    /// The most hard links.
    Maxlink = 28, "maxlink", maxlink: u32;
    /// The longest name in bytes.
    Maxname = 29, "maxname", maxname: u32;
    /// The most bytes in a READ.
    Maxread = 30, "maxread", maxread: u64;
    /// The most bytes in a WRITE.
    Maxwrite = 31, "maxwrite", maxwrite: u64;
    /// Media type.
    Mimetype = 32, "mimetype", mimetype: Limited;
    /// Permission bits.
    Mode = 33, "mode", mode: u32;
    /// Names too long are refused, not cut.
    NoTrunc = 34, "no_trunc", no_trunc: bool;
    /// Number of hard links.
    Numlinks = 35, "numlinks", numlinks: u32;
    /// Owner: a name, or a number in digits.
    Owner = 36, "owner", owner: Limited;
    /// Group: a name, or a number in digits.
    OwnerGroup = 37, "owner_group", owner_group: Limited;
    /// Bytes up to the hard quota.
    QuotaAvailHard = 38, "quota_avail_hard", quota_avail_hard: u64;
    /// Bytes up to the soft quota.
    QuotaAvailSoft = 39, "quota_avail_soft", quota_avail_soft: u64;
    /// Bytes used of the quota.
    QuotaUsed = 40, "quota_used", quota_used: u64;
    /// Device numbers.
    Rawdev = 41, "rawdev", rawdev: Specdata;
    /// Bytes for this user.
    SpaceAvail = 42, "space_avail", space_avail: u64;
    /// Bytes free.
    SpaceFree = 43, "space_free", space_free: u64;
    /// Bytes.
    SpaceTotal = 44, "space_total", space_total: u64;
    /// Bytes of disk that the object uses.
    SpaceUsed = 45, "space_used", space_used: u64;
    /// Is a system file.
    System = 46, "system", system: bool;
    /// Last access.
    TimeAccess = 47, "time_access", time_access: Nfstime;
    /// Last access, to be set.
    TimeAccessSet = 48, "time_access_set", time_access_set: Settime;
    /// Last backup.
    TimeBackup = 49, "time_backup", time_backup: Nfstime;
    /// Creation.
    TimeCreate = 50, "time_create", time_create: Nfstime;
    /// The smallest step of times.
    TimeDelta = 51, "time_delta", time_delta: Nfstime;
    /// Last change of data or attributes.
    TimeMetadata = 52, "time_metadata", time_metadata: Nfstime;
    /// Last change of the data.
    TimeModify = 53, "time_modify", time_modify: Nfstime;
    /// Last change of the data, to be set.
    TimeModifySet = 54, "time_modify_set", time_modify_set: Settime;
    /// Inode number of what is mounted on.
    MountedOnFileid = 55, "mounted_on_fileid", mounted_on_fileid: u64;
    /// How late notifications of a directory's attributes may come.
    DirNotifDelay = 56, "dir_notif_delay", dir_notif_delay: Nfstime;
    /// How late notifications of entries' attributes may come.
    DirentNotifDelay = 57, "dirent_notif_delay", dirent_notif_delay: Nfstime;
    /// The allow and deny entries.
    Dacl = 58, "dacl", dacl: Box<Nfsacl41>;
    /// The audit and alarm entries.
    Sacl = 59, "sacl", sacl: Box<Nfsacl41>;
    /// Differs when the server's policy has changed.
    ChangePolicy = 60, "change_policy", change_policy: ChangePolicy;
    /// State of the file system.
    FsStatus = 61, "fs_status";
    /// Layout types of the file system.
    FsLayoutTypes = 62, "fs_layout_types", fs_layout_types: List<u32, 64>;
    /// Which layout would be best.
    LayoutHint = 63, "layout_hint", layout_hint: Box<LayoutHint>;
    /// Layout types of the file.
    LayoutTypes = 64, "layout_types", layout_types: List<u32, 64>;
    /// Block size of layouts in bytes.
    LayoutBlksize = 65, "layout_blksize", layout_blksize: u32;
    /// Alignment of layouts in bytes.
    LayoutAlignment = 66, "layout_alignment", layout_alignment: u32;
    /// Where else the file system is, at length.
    FsLocationsInfo = 67, "fs_locations_info";
    /// When I/O should go through the metadata server.
    Mdsthreshold = 68, "mdsthreshold";
    /// How long the file must be retained.
    RetentionGet = 69, "retention_get";
    /// How long the file must be retained, to be set.
    RetentionSet = 70, "retention_set";
    /// How long the file must be retained behind an event.
    RetentevtGet = 71, "retentevt_get";
    /// How long the file must be retained behind an event, to be set.
    RetentevtSet = 72, "retentevt_set";
    /// Holds on the file.
    RetentionHold = 73, "retention_hold", retention_hold: u64;
    /// Some permission bits, to be set.
    ModeSetMasked = 74, "mode_set_masked", mode_set_masked: ModeMasked;
    /// Attributes that OPEN with `EXCLUSIVE4_1` can set.
    SuppattrExclcreat = 75, "suppattr_exclcreat", suppattr_exclcreat: Bitmap;
    /// What names may be made of.
    FsCharsetCap = 76, "fs_charset_cap", fs_charset_cap: u32;
    /// Alignment of CLONE in bytes.
    CloneBlksize = 77, "clone_blksize", clone_blksize: u32;
    /// Bytes that removing the file would free.
    SpaceFreed = 78, "space_freed", space_freed: u64;
    /// What the values of `change` mean.
    ChangeAttrType = 79, "change_attr_type", change_attr_type: ChangeAttrType;
    /// Security label.
    SecLabel = 80, "sec_label", sec_label: Box<SecLabel>;
    /// Permission bits and umask of a new object, to be set.
    ModeUmask = 81, "mode_umask", mode_umask: ModeUmask;
    /// There are extended attributes.
    XattrSupport = 82, "xattr_support", xattr_support: bool;
    /// Takes long to be read.
    Offline = 83, "offline", offline: bool;
    /// Last access, to be set by the holder of a delegation.
    TimeDelegAccess = 84, "time_deleg_access", time_deleg_access: Nfstime;
    /// Last change of the data, to be set by the holder of a delegation.
    TimeDelegModify = 85, "time_deleg_modify", time_deleg_modify: Nfstime;
    /// Which arguments of OPEN the server knows.
    OpenArguments = 86, "open_arguments", open_arguments: Box<OpenArguments>;
}

impl Fattr {
    /// The number of bytes on the wire.
    pub fn encoded_len(&self) -> usize {
        let (bitmap, bytes) = self.measure();
        bitmap.encoded_len() + 4 + bytes
    }
}

impl Encode for Fattr {
    fn encode(&self, encoder: &mut Encoder) {
        let (bitmap, bytes) = self.measure();
        bitmap.encode(encoder);
        encoder.u32(bytes as u32);
        self.encode_values(encoder);
    }
}

/// An attribute that has no field is an error with its number: a peer sends what it was asked for.
impl Decode for Fattr {
    fn decode(decoder: &mut Decoder) -> Result<Fattr, Error> {
        let mut fattr = Fattr::default();
        Parts::decode(decoder)?.known()?.decode_into(&mut fattr)?;
        Ok(fattr)
    }
}

impl Encode for Box<Fattr> {
    fn encode(&self, encoder: &mut Encoder) {
        (**self).encode(encoder);
    }
}

impl Decode for Box<Fattr> {
    fn decode(decoder: &mut Decoder) -> Result<Box<Fattr>, Error> {
        let mut fattr = Box::default();
        Parts::decode(decoder)?.known()?.decode_into(&mut fattr)?;
        Ok(fattr)
    }
}

/// `fattr4` before its values are decoded.
struct Parts {
    attrmask: Bitmap,
    attr_vals: Opaque<BODY_MAX>,
    /// The lowest attribute that has no field.
    unknown: Option<u32>,
}

impl Parts {
    fn decode(decoder: &mut Decoder) -> Result<Parts, Error> {
        let (attrmask, beyond) = Bitmap::decode_all(decoder)?;
        let unknown = (attrmask - Fattr::FIELDS).first().or(beyond);
        Ok(Parts { attrmask, attr_vals: Opaque::decode(decoder)?, unknown })
    }

    /// All attributes must have fields.
    fn known(self) -> Result<Parts, Error> {
        match self.unknown {
            None => Ok(self),
            Some(value) => Err(Error::Discriminant { name: "fattr4 attribute", value }),
        }
    }

    /// Decodes the values, which must end where the attributes do.
    fn decode_into(self, fattr: &mut Fattr) -> Result<(), Error> {
        let mut values = Decoder::new(self.attr_vals.into_bytes());
        fattr.decode_values(self.attrmask, &mut values)?;
        values.finish()
    }
}

/// `fattr4` in arguments, where an attribute that the server does not know is answered with ATTRNOTSUPP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgFattr {
    /// All of them have fields.
    Known(Box<Fattr>),
    /// One has none, and so the values cannot be read.
    Unknown {
        /// The lowest such attribute.
        attribute: u32,
        /// Attributes with numbers that a bitmap keeps.
        attrmask: Bitmap,
        /// The values.
        attr_vals: Opaque<BODY_MAX>,
    },
}

impl ArgFattr {
    /// The attributes, or the number of the one that is not known.
    pub fn known(&self) -> Result<&Fattr, u32> {
        match self {
            ArgFattr::Known(fattr) => Ok(fattr),
            ArgFattr::Unknown { attribute, .. } => Err(*attribute),
        }
    }
}

impl Default for ArgFattr {
    fn default() -> ArgFattr {
        ArgFattr::Known(Box::default())
    }
}

impl From<Fattr> for ArgFattr {
    fn from(fattr: Fattr) -> ArgFattr {
        ArgFattr::Known(Box::new(fattr))
    }
}

impl Encode for ArgFattr {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            ArgFattr::Known(fattr) => fattr.encode(encoder),
            ArgFattr::Unknown { attribute, attrmask, attr_vals } => {
                attrmask.encode_with(*attribute, encoder);
                attr_vals.encode(encoder);
            }
        }
    }
}

impl Decode for ArgFattr {
    fn decode(decoder: &mut Decoder) -> Result<ArgFattr, Error> {
        let parts = Parts::decode(decoder)?;
        match parts.unknown {
            None => {
                let mut fattr = Box::default();
                parts.decode_into(&mut fattr)?;
                Ok(ArgFattr::Known(fattr))
            }
            Some(attribute) => {
                Ok(ArgFattr::Unknown { attribute, attrmask: parts.attrmask, attr_vals: parts.attr_vals })
            }
        }
    }
}
