//! MOUNT and the port mapper, byte by byte.

use xdr::{Inline, LinkedList, List};

use super::wire::{Seed, args, results, text};
use crate::Reply::{Fail, Ok};
use crate::mount::{Exportnode, MountOk, Mountbody, Stat, v1, v3};
use crate::portmap;

/// Examples of MOUNT. Making an example compares it with its bytes.
pub fn mount_seeds() -> Vec<Seed> {
    let mounts = LinkedList::new(vec![Mountbody { hostname: text("pc"), directory: text("/srv") }]).unwrap();
    let exports = LinkedList::new(vec![
        Exportnode { dir: text("/srv"), groups: LinkedList::new(vec![text("lab"), text("pc")]).unwrap() },
        Exportnode { dir: text("/pub"), groups: LinkedList::default() },
    ])
    .unwrap();
    let exports_wire = "1 \"/srv\" 1 \"lab\" 1 \"pc\" 0 1 \"/pub\" 0 0";
    let root =
        MountOk { fhandle: Inline::new(b"\xca\xfe").unwrap(), auth_flavors: List::new(vec![1, 0]).unwrap() };
    vec![
        args::<v1::call::Null>(&(), ""),
        args::<v1::call::Mnt>(&text("/srv"), "\"/srv\""),
        results::<v1::call::Mnt>(
            &Ok([0xab; 32]),
            "0 =abababababababababababababababababababababababababababababababab",
        ),
        results::<v1::call::Mnt>(&Fail(Stat::Acces, ()), "13"),
        results::<v1::call::Dump>(&mounts, "1 \"pc\" \"/srv\" 0"),
        args::<v1::call::Umnt>(&text("/srv"), "\"/srv\""),
        args::<v1::call::Umntall>(&(), ""),
        results::<v1::call::Export>(&exports, exports_wire),
        args::<v3::call::Null>(&(), ""),
        args::<v3::call::Mnt>(&text("/srv"), "\"/srv\""),
        results::<v3::call::Mnt>(&Ok(root), "0 'cafe 2 1 0"),
        results::<v3::call::Mnt>(&Fail(Stat::NotSupp, ()), "10004"),
        results::<v3::call::Dump>(&mounts, "1 \"pc\" \"/srv\" 0"),
        args::<v3::call::Umnt>(&text("/srv"), "\"/srv\""),
        args::<v3::call::Umntall>(&(), ""),
        results::<v3::call::Export>(&exports, exports_wire),
    ]
}

/// Examples of the port mapper. Making an example compares it with its bytes.
pub fn portmap_seeds() -> Vec<Seed> {
    use portmap::{Mapping, TCP, UDP, call};
    let nfs = Mapping { prog: 100_003, vers: 3, prot: TCP, port: 2049 };
    let mount = Mapping { prog: 100_005, vers: 1, prot: UDP, port: 0 };
    vec![
        args::<call::Null>(&(), ""),
        args::<call::Set>(&nfs, "100003 3 6 2049"),
        results::<call::Set>(&true, "1"),
        args::<call::Unset>(&nfs, "100003 3 6 2049"),
        results::<call::Unset>(&false, "0"),
        args::<call::Getport>(&mount, "100005 1 17 0"),
        results::<call::Getport>(&20048, "20048"),
        results::<call::Dump>(
            &LinkedList::new(vec![nfs, mount]).unwrap(),
            "1 100003 3 6 2049 1 100005 1 17 0 0",
        ),
    ]
}

#[test]
fn mount_is_as_both_rfcs_write_it() {
    assert_eq!(mount_seeds().len(), 16);
}

#[test]
fn the_port_mapper_is_as_rfc_1833_writes_it() {
    assert_eq!(portmap_seeds().len(), 8);
}
