//! `fattr4`: a bitmap, and the values of its attributes in the order of their numbers (RFC 8881, section 5).
//!
//! All lengths are known before encoding starts, so attributes are encoded directly into the message.
//! Encoding attributes is the larger part of the cost of GETATTR and READDIR.

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
        /// `fattr4`: fields that are `None` are not part of it.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Fattr {
            $(#[doc = concat!("[`Attr::", stringify!($attr), "`]")] pub $field: Option<$value>,)*
        }

        impl Fattr {
            /// The attributes that have a field. Any other attribute makes decoding impossible.
            pub const FIELDS: Bitmap = Bitmap::of(&[$(Attr::$attr),*]);

            /// The attributes that are present.
            pub fn attributes(&self) -> Bitmap {
                self.measure().0
            }

            /// Removes all attributes except these.
            pub fn retain(&mut self, attributes: Bitmap) {
                $(if !attributes.contains(Attr::$attr) {
                    self.$field = None;
                })*
            }

            /// The attributes that are present, and the number of bytes of their values.
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
    /// Attributes that the file system supports.
    SupportedAttrs = 0, "supported_attrs", supported_attrs: Bitmap;
    /// Type of the object.
    Type = 1, "type", ftype: Ftype;
    /// `FH4_*`: how long handles stay valid.
    FhExpireType = 2, "fh_expire_type", fh_expire_type: u32;
    /// Changes whenever data or attributes change.
    Change = 3, "change", change: u64;
    /// Size in bytes.
    Size = 4, "size", size: u64;
    /// Hard links are supported.
    LinkSupport = 5, "link_support", link_support: bool;
    /// Symbolic links are supported.
    SymlinkSupport = 6, "symlink_support", symlink_support: bool;
    /// The object has named attributes.
    NamedAttr = 7, "named_attr", named_attr: bool;
    /// File system.
    Fsid = 8, "fsid", fsid: Fsid;
    /// Two different handles never refer to the same object.
    UniqueHandles = 9, "unique_handles", unique_handles: bool;
    /// The lease in seconds.
    LeaseTime = 10, "lease_time", lease_time: u32;
    /// The error that prevents READDIR from returning the other attributes.
    RdattrError = 11, "rdattr_error", rdattr_error: Outcome;
    /// Access control list.
    Acl = 12, "acl", acl: Acl;
    /// `ACL4_SUPPORT_*`
    Aclsupport = 13, "aclsupport", aclsupport: u32;
    /// The file has been archived.
    Archive = 14, "archive", archive: bool;
    /// Times can be set.
    Cansettime = 15, "cansettime", cansettime: bool;
    /// Names are case-insensitive.
    CaseInsensitive = 16, "case_insensitive", case_insensitive: bool;
    /// Names keep their case.
    CasePreserving = 17, "case_preserving", case_preserving: bool;
    /// Only privileged users may change the owner of a file.
    ChownRestricted = 18, "chown_restricted", chown_restricted: bool;
    /// Handle.
    Filehandle = 19, "filehandle", filehandle: Handle;
    /// Inode number.
    Fileid = 20, "fileid", fileid: u64;
    /// Inodes available to this user.
    FilesAvail = 21, "files_avail", files_avail: u64;
    /// Free inodes.
    FilesFree = 22, "files_free", files_free: u64;
    /// Total inodes.
    FilesTotal = 23, "files_total", files_total: u64;
    /// Other servers that have the file system.
    FsLocations = 24, "fs_locations", fs_locations: Box<FsLocations>;
    /// The file is hidden.
    Hidden = 25, "hidden", hidden: bool;
    /// The attributes of the file system are the same for all its objects.
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
    /// Names that are too long are refused, not truncated.
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
    /// Bytes available to this user.
    SpaceAvail = 42, "space_avail", space_avail: u64;
    /// Free bytes.
    SpaceFree = 43, "space_free", space_free: u64;
    /// Total bytes.
    SpaceTotal = 44, "space_total", space_total: u64;
    /// Bytes of disk that the object uses.
    SpaceUsed = 45, "space_used", space_used: u64;
    /// The file is a system file.
    System = 46, "system", system: bool;
    /// Last access.
    TimeAccess = 47, "time_access", time_access: Nfstime;
    /// Sets the last access.
    TimeAccessSet = 48, "time_access_set", time_access_set: Settime;
    /// Last backup.
    TimeBackup = 49, "time_backup", time_backup: Nfstime;
    /// Creation.
    TimeCreate = 50, "time_create", time_create: Nfstime;
    /// Timestamp granularity.
    TimeDelta = 51, "time_delta", time_delta: Nfstime;
    /// Last change of data or attributes.
    TimeMetadata = 52, "time_metadata", time_metadata: Nfstime;
    /// Last change of the data.
    TimeModify = 53, "time_modify", time_modify: Nfstime;
    /// Sets the last change of the data.
    TimeModifySet = 54, "time_modify_set", time_modify_set: Settime;
    /// Inode number of the directory that this file system is mounted on.
    MountedOnFileid = 55, "mounted_on_fileid", mounted_on_fileid: u64;
    /// The longest delay of notifications about a directory's attributes.
    DirNotifDelay = 56, "dir_notif_delay", dir_notif_delay: Nfstime;
    /// The longest delay of notifications about entries' attributes.
    DirentNotifDelay = 57, "dirent_notif_delay", dirent_notif_delay: Nfstime;
    /// The allow and deny entries.
    Dacl = 58, "dacl", dacl: Box<Nfsacl41>;
    /// The audit and alarm entries.
    Sacl = 59, "sacl", sacl: Box<Nfsacl41>;
    /// Changes whenever the server's policy changes.
    ChangePolicy = 60, "change_policy", change_policy: ChangePolicy;
    /// State of the file system.
    FsStatus = 61, "fs_status";
    /// Layout types of the file system.
    FsLayoutTypes = 62, "fs_layout_types", fs_layout_types: List<u32, 64>;
    /// The best layout.
    LayoutHint = 63, "layout_hint", layout_hint: Box<LayoutHint>;
    /// Layout types of the file.
    LayoutTypes = 64, "layout_types", layout_types: List<u32, 64>;
    /// Block size of layouts in bytes.
    LayoutBlksize = 65, "layout_blksize", layout_blksize: u32;
    /// Alignment of layouts in bytes.
    LayoutAlignment = 66, "layout_alignment", layout_alignment: u32;
    /// Other servers that have the file system, in detail.
    FsLocationsInfo = 67, "fs_locations_info";
    /// When I/O should go through the metadata server.
    Mdsthreshold = 68, "mdsthreshold";
    /// How long the file must be retained.
    RetentionGet = 69, "retention_get";
    /// Sets how long the file must be retained.
    RetentionSet = 70, "retention_set";
    /// How long the file must be retained after an event.
    RetentevtGet = 71, "retentevt_get";
    /// Sets how long the file must be retained after an event.
    RetentevtSet = 72, "retentevt_set";
    /// Holds on the file.
    RetentionHold = 73, "retention_hold", retention_hold: u64;
    /// Sets some permission bits.
    ModeSetMasked = 74, "mode_set_masked", mode_set_masked: ModeMasked;
    /// Attributes that OPEN with `EXCLUSIVE4_1` can set.
    SuppattrExclcreat = 75, "suppattr_exclcreat", suppattr_exclcreat: Bitmap;
    /// Character sets that names may use.
    FsCharsetCap = 76, "fs_charset_cap", fs_charset_cap: u32;
    /// Alignment of CLONE in bytes.
    CloneBlksize = 77, "clone_blksize", clone_blksize: u32;
    /// Bytes that removing the file would free.
    SpaceFreed = 78, "space_freed", space_freed: u64;
    /// The meaning of the values of `change`.
    ChangeAttrType = 79, "change_attr_type", change_attr_type: ChangeAttrType;
    /// Security label.
    SecLabel = 80, "sec_label", sec_label: Box<SecLabel>;
    /// Sets permission bits and umask of a new object.
    ModeUmask = 81, "mode_umask", mode_umask: ModeUmask;
    /// Extended attributes are supported.
    XattrSupport = 82, "xattr_support", xattr_support: bool;
    /// Reading the file takes long.
    Offline = 83, "offline", offline: bool;
    /// Sets the last access; for the holder of a delegation.
    TimeDelegAccess = 84, "time_deleg_access", time_deleg_access: Nfstime;
    /// Sets the last change of the data; for the holder of a delegation.
    TimeDelegModify = 85, "time_deleg_modify", time_deleg_modify: Nfstime;
    /// The arguments of OPEN that the server supports.
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

/// An attribute without a field is an error with its number, because a peer sends only requested attributes.
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
    /// The lowest attribute without a field.
    unknown: Option<u32>,
}

impl Parts {
    fn decode(decoder: &mut Decoder) -> Result<Parts, Error> {
        let (attrmask, beyond) = Bitmap::decode_all(decoder)?;
        let unknown = (attrmask - Fattr::FIELDS).first().or(beyond);
        Ok(Parts { attrmask, attr_vals: Opaque::decode(decoder)?, unknown })
    }

    /// Fails if an attribute has no field.
    fn known(self) -> Result<Parts, Error> {
        match self.unknown {
            None => Ok(self),
            Some(value) => Err(Error::Discriminant { name: "fattr4 attribute", value }),
        }
    }

    /// Decodes the values, which must end with the last attribute.
    fn decode_into(self, fattr: &mut Fattr) -> Result<(), Error> {
        let mut values = Decoder::new(self.attr_vals.into_bytes());
        fattr.decode_values(self.attrmask, &mut values)?;
        values.finish()
    }
}

/// `fattr4` in arguments. If it contains an attribute that the server does not support, the server replies
/// ATTRNOTSUPP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgFattr {
    /// All attributes have fields.
    Known(Box<Fattr>),
    /// One attribute has no field, so the values cannot be decoded.
    Unknown {
        /// The lowest such attribute.
        attribute: u32,
        /// The attributes whose numbers a bitmap stores.
        attrmask: Bitmap,
        /// The values.
        attr_vals: Opaque<BODY_MAX>,
    },
}

impl ArgFattr {
    /// The attributes, or the number of an unsupported one.
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
