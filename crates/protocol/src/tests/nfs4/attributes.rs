//! Attributes byte by byte, alone and all together.

use bytes::Bytes;
use proptest::prelude::*;
use xdr::{Decode, Decoder, Encode};

use super::*;

const TIME: Nfstime = Nfstime { seconds: -2, nseconds: 7 };

/// A value for each attribute that has a field.
pub fn full() -> Fattr {
    Fattr {
        supported_attrs: Some(Bitmap::of(&[Attr::Type, Attr::Mode])),
        ftype: Some(Ftype::Dir),
        fh_expire_type: Some(FH4_VOL_RENAME),
        change: Some(3),
        size: Some(4),
        link_support: Some(true),
        symlink_support: Some(false),
        named_attr: Some(true),
        fsid: Some(Fsid { major: 8, minor: 9 }),
        unique_handles: Some(true),
        lease_time: Some(90),
        rdattr_error: Some(Outcome::Fail(Status::Moved, ())),
        acl: Some(list(vec![Ace { acetype: 1, flag: 2, access_mask: 3, who: text("OWNER@") }])),
        aclsupport: Some(3),
        archive: Some(false),
        cansettime: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        filehandle: Some(handle()),
        fileid: Some(20),
        files_avail: Some(21),
        files_free: Some(22),
        files_total: Some(23),
        fs_locations: Some(Box::new(FsLocations {
            fs_root: list(vec![text("a"), text("b")]),
            locations: list(vec![FsLocation {
                server: list(vec![text("server")]),
                rootpath: list(vec![text("c")]),
            }]),
        })),
        hidden: Some(false),
        homogeneous: Some(true),
        maxfilesize: Some(27),
        maxlink: Some(28),
        maxname: Some(255),
        maxread: Some(30),
        maxwrite: Some(31),
        mimetype: Some(text("text/plain")),
        mode: Some(0o755),
        no_trunc: Some(true),
        numlinks: Some(2),
        owner: Some(text("root@example.net")),
        owner_group: Some(text("100")),
        quota_avail_hard: Some(38),
        quota_avail_soft: Some(39),
        quota_used: Some(40),
        rawdev: Some(Specdata { specdata1: 8, specdata2: 1 }),
        space_avail: Some(42),
        space_free: Some(43),
        space_total: Some(44),
        space_used: Some(45),
        system: Some(false),
        time_access: Some(TIME),
        time_access_set: Some(Settime::SetToServerTime),
        time_backup: Some(TIME),
        time_create: Some(TIME),
        time_delta: Some(Nfstime { seconds: 0, nseconds: 1 }),
        time_metadata: Some(TIME),
        time_modify: Some(TIME),
        time_modify_set: Some(Settime::SetToClientTime(TIME)),
        mounted_on_fileid: Some(55),
        dir_notif_delay: Some(TIME),
        dirent_notif_delay: Some(TIME),
        dacl: Some(Box::new(Nfsacl41 { flag: 1, aces: list(vec![]) })),
        sacl: Some(Box::new(Nfsacl41 { flag: 2, aces: list(vec![Ace::default()]) })),
        change_policy: Some(ChangePolicy { major: 1, minor: 2 }),
        fs_layout_types: Some(list(vec![1, 4])),
        layout_hint: Some(Box::new(LayoutHint { layout_type: 4, body: text("hint") })),
        layout_types: Some(list(vec![])),
        layout_blksize: Some(65),
        layout_alignment: Some(66),
        retention_hold: Some(73),
        mode_set_masked: Some(ModeMasked { value_to_set: 1, mask_bits: 2 }),
        suppattr_exclcreat: Some(Bitmap::of(&[Attr::XattrSupport])),
        fs_charset_cap: Some(2),
        clone_blksize: Some(4096),
        space_freed: Some(78),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        sec_label: Some(Box::new(SecLabel { lfs: 1, pi: 2, data: text("label") })),
        mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o22 }),
        xattr_support: Some(true),
        offline: Some(false),
        time_deleg_access: Some(TIME),
        time_deleg_modify: Some(TIME),
        open_arguments: Some(Box::new(OpenArguments {
            share_access: Bitmap::EMPTY.with_bit(1),
            open_claim: Bitmap::EMPTY.with_bit(4),
            ..OpenArguments::default()
        })),
    }
}

/// The values of [`full`], each after its number.
const FULL: [(u32, &str); 81] = [
    (0, "2 2 2"),
    (1, "2"),
    (2, "8"),
    (3, "q3"),
    (4, "q4"),
    (5, "1"),
    (6, "0"),
    (7, "1"),
    (8, "q8 q9"),
    (9, "1"),
    (10, "90"),
    (11, "10019"),
    (12, "1 1 2 3 \"OWNER@\""),
    (13, "3"),
    (14, "0"),
    (15, "1"),
    (16, "0"),
    (17, "1"),
    (18, "1"),
    (19, "'cafebabe01"),
    (20, "q20"),
    (21, "q21"),
    (22, "q22"),
    (23, "q23"),
    (24, "2 \"a\" \"b\" 1 1 \"server\" 1 \"c\""),
    (25, "0"),
    (26, "1"),
    (27, "q27"),
    (28, "28"),
    (29, "255"),
    (30, "q30"),
    (31, "q31"),
    (32, "\"text/plain\""),
    (33, "493"),
    (34, "1"),
    (35, "2"),
    (36, "\"root@example.net\""),
    (37, "\"100\""),
    (38, "q38"),
    (39, "q39"),
    (40, "q40"),
    (41, "8 1"),
    (42, "q42"),
    (43, "q43"),
    (44, "q44"),
    (45, "q45"),
    (46, "0"),
    (47, "=fffffffffffffffe 7"),
    (48, "0"),
    (49, "=fffffffffffffffe 7"),
    (50, "=fffffffffffffffe 7"),
    (51, "q0 1"),
    (52, "=fffffffffffffffe 7"),
    (53, "=fffffffffffffffe 7"),
    (54, "1 =fffffffffffffffe 7"),
    (55, "q55"),
    (56, "=fffffffffffffffe 7"),
    (57, "=fffffffffffffffe 7"),
    (58, "1 0"),
    (59, "2 1 0 0 0 '"),
    (60, "q1 q2"),
    (62, "2 1 4"),
    (63, "4 \"hint\""),
    (64, "0"),
    (65, "65"),
    (66, "66"),
    (73, "q73"),
    (74, "1 2"),
    (75, "3 0 0 262144"),
    (76, "2"),
    (77, "4096"),
    (78, "q78"),
    (79, "3"),
    (80, "1 2 \"label\""),
    (81, "438 18"),
    (82, "1"),
    (83, "0"),
    (84, "=fffffffffffffffe 7"),
    (85, "=fffffffffffffffe 7"),
    (86, "1 2 0 0 1 16 0"),
    // Not an attribute: end of the table.
    (87, ""),
];

/// The bytes of the wanted entries of [`FULL`].
fn bytes(wanted: impl Fn(u32) -> bool) -> Vec<u8> {
    let (mut words, mut values) = ([0; 3], Vec::new());
    for (number, text) in FULL.iter().filter(|(number, _)| *number < 87 && wanted(*number)) {
        words[*number as usize / 32] |= 1 << (number % 32);
        values.extend(wire(text));
    }
    let length = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    let mut bytes = (length as u32).to_be_bytes().to_vec();
    words[..length].iter().for_each(|word: &u32| bytes.extend(word.to_be_bytes()));
    bytes.extend((values.len() as u32).to_be_bytes());
    bytes.extend(values);
    bytes
}

#[test]
fn each_attribute_has_its_number_and_its_bytes() {
    for attribute in Attr::ALL.iter().filter(|attribute| Fattr::FIELDS.contains(**attribute)) {
        let mut alone = full();
        alone.retain(Bitmap::of(&[*attribute]));
        let expected = bytes(|number| number == *attribute as u32);
        assert_eq!(xdr::to_bytes(&alone).unwrap(), expected, "{}", attribute.name());
        assert_eq!(xdr::from_bytes::<Fattr>(expected.into()).unwrap(), alone, "{}", attribute.name());
    }
    assert_eq!(full().attributes(), Fattr::FIELDS);
    assert_eq!(Fattr::FIELDS.iter().count(), FULL.len() - 1);
}

#[test]
fn attributes_are_numbered_without_gaps_and_have_different_names() {
    let numbers: Vec<u32> = Attr::ALL.iter().map(|attribute| *attribute as u32).collect();
    assert_eq!(numbers, (0..=86).collect::<Vec<_>>());
    let names: std::collections::HashSet<_> = Attr::ALL.iter().map(|attribute| attribute.name()).collect();
    assert_eq!(names.len(), Attr::ALL.len());
    assert_eq!(Attr::from_number(55), Some(Attr::MountedOnFileid));
    assert_eq!(Attr::from_number(87), None);
}

proptest! {
    #[test]
    fn any_attributes_together_come_in_the_order_of_their_numbers(words in any::<[u32; 3]>()) {
        let wanted = Bitmap::from_words(words) & Fattr::FIELDS;
        let mut fattr = full();
        fattr.retain(wanted);
        prop_assert_eq!(fattr.attributes(), wanted);
        let expected = bytes(|number| wanted.contains_bit(number));
        let encoded = xdr::to_bytes(&fattr).unwrap();
        prop_assert_eq!(&encoded[..], &expected[..]);
        prop_assert_eq!(fattr.encoded_len(), expected.len());
        prop_assert_eq!(xdr::from_bytes::<Fattr>(encoded).unwrap(), fattr);
    }

    #[test]
    fn a_bitmap_is_a_set(one in any::<[u32; 3]>(), other in any::<[u32; 3]>(), number in 0..128u32) {
        let (one, other) = (Bitmap::from_words(one), Bitmap::from_words(other));
        let set = |bitmap: Bitmap| bitmap.iter().collect::<std::collections::BTreeSet<u32>>();
        prop_assert_eq!(set(one & other), &set(one) & &set(other));
        prop_assert_eq!(set(one | other), &set(one) | &set(other));
        prop_assert_eq!(set(one - other), &set(one) - &set(other));
        prop_assert_eq!(one.contains_bit(number), set(one).contains(&number));
        prop_assert_eq!(one.with_bit(number).contains_bit(number), number < 96);
        prop_assert_eq!(one.first(), set(one).first().copied());
        let encoded = xdr::to_bytes(&one).unwrap();
        prop_assert_eq!(encoded.len(), one.encoded_len());
        prop_assert_eq!(xdr::from_bytes::<Bitmap>(encoded).unwrap(), one);
    }
}

#[test]
fn a_long_bitmap_is_read_and_its_high_numbers_are_dropped() {
    let mut long = wire("32 2 2");
    long.extend([0xff; 30 * 4]);
    let read = xdr::from_bytes::<Bitmap>(long.into()).unwrap();
    assert_eq!(read, Bitmap::from_words([2, 2, u32::MAX]));
    assert_eq!(xdr::from_bytes::<Bitmap>(wire("4 2 0 0 0").into()).unwrap(), Bitmap::of(&[Attr::Type]));
    assert!(matches!(
        xdr::from_bytes::<Bitmap>(wire("1001").into()),
        Err(xdr::Error::TooLong { length: 1001, bound: 1000 })
    ));
}

#[test]
fn an_unknown_attribute_in_a_reply_is_an_error_with_its_number() {
    let unknown = |value| Err(xdr::Error::Discriminant { name: "fattr4 attribute", value });
    assert_eq!(xdr::from_bytes::<Fattr>(wire("3 8 0 8388608 12 q3 1").into()), unknown(87));
    assert_eq!(xdr::from_bytes::<Fattr>(wire("2 8 536870912 8 q3").into()), unknown(61));
    assert_eq!(xdr::from_bytes::<Fattr>(wire("4 8 0 0 1 8 q3").into()), unknown(96));
}

#[test]
fn an_unknown_attribute_in_arguments_does_not_hide_what_follows() {
    let message = wire("34 0 =000000000000000000000000 4 16 0 0 2 12 q5 7 10");
    let mut decoder = Decoder::new(message.into());
    let ArgOp::Setattr(args) = ArgOp::decode(&mut decoder).unwrap() else { panic!("not SETATTR") };
    assert_eq!(args.obj_attributes.known(), Err(97));
    assert_eq!(ArgOp::decode(&mut decoder), Ok(ArgOp::Getfh(())));
    let again = xdr::to_bytes(&args.obj_attributes).unwrap();
    assert_eq!(again, wire("4 16 0 0 2 12 q5 7"));
}

#[test]
fn values_that_do_not_fit_the_bitmap_are_refused() {
    let known =
        |text: &str| xdr::from_bytes::<ArgFattr>(wire(text).into()).map(|fattr| fattr.known().cloned());
    assert_eq!(known("1 16 8 q5"), Ok(Ok(Fattr { size: Some(5), ..Fattr::default() })));
    assert_eq!(known("1 16 12 q5 7"), Err(xdr::Error::Trailing(4)));
    assert_eq!(known("1 24 8 q5"), Err(xdr::Error::Truncated));
    assert_eq!(known("1 16 16 q5"), Err(xdr::Error::Truncated));
    assert_eq!(known("1 32 4 2"), Err(xdr::Error::Discriminant { name: "bool", value: 2 }));
}

#[test]
fn an_entry_knows_its_length() {
    for name in ["", "a", "four", "hello"] {
        let entry = Entry { cookie: 1, name: text(name), attrs: full() };
        let mut encoder = xdr::Encoder::new();
        true.encode(&mut encoder);
        entry.encode(&mut encoder);
        assert_eq!(entry.encoded_len(), encoder.len());
    }
}

#[test]
fn owners_are_bounded() {
    let mut long = wire("2 0 16 1032 1025");
    long.extend([b'a'; 1028]);
    assert_eq!(
        xdr::from_bytes::<Fattr>(Bytes::from(long)),
        Err(xdr::Error::TooLong { length: 1025, bound: 1024 })
    );
}
