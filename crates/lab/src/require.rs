//! The lab's requirements on the machine, and a message about missing ones.

use std::path::{Path, PathBuf};

/// Programs that the lab runs, each with its Debian package.
const PROGRAMS: [(&str, &str); 22] = [
    ("linux.uml", "user-mode-linux"),
    ("ganesha.nfsd", "nfs-ganesha"),
    ("mount.nfs", "nfs-common"),
    ("rpc.nfsd", "nfs-kernel-server"),
    ("rpcbind", "rpcbind"),
    ("mkfs.ext4", "e2fsprogs"),
    ("modprobe", "kmod"),
    ("ip", "iproute2"),
    ("taskset", "util-linux"),
    ("kill", "procps"),
    ("gcc", "gcc"),
    ("make", "make"),
    ("git", "git"),
    ("tar", "tar"),
    ("nfs-cp", "libnfs-utils"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("fusermount3", "fuse3"),
    ("sqlite3", "sqlite3"),
    ("rsync", "rsync"),
    ("systemctl", "systemd"),
    ("promtool", "prometheus"),
];

/// Programs of a [`Realm`](crate::Realm), each with its Debian package. They need no root.
const KERBEROS: [(&str, &str); 4] = [
    ("krb5kdc", "krb5-kdc"),
    ("kdb5_util", "krb5-kdc"),
    ("kadmin.local", "krb5-admin-server"),
    ("kinit", "krb5-user"),
];

/// Programs of [`Etcd`](crate::Etcd), each with its Debian package. They need no root.
const ETCD: [(&str, &str); 2] = [("etcd", "etcd-server"), ("etcdctl", "etcd-client")];

/// Other files that the lab needs.
const FILES: [(&str, &str); 2] = [
    ("/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so", "nfs-ganesha-vfs"),
    ("/usr/lib/x86_64-linux-gnu/ganesha/libfsalproxy_v4.so", "nfs-ganesha-proxy-v4"),
];

/// The requirements that this machine does not meet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Debian packages to install.
    pub packages: Vec<&'static str>,
    /// Requirements that no package satisfies, one sentence each.
    pub reasons: Vec<String>,
}

impl Missing {
    /// True if nothing is missing.
    pub fn is_none(&self) -> bool {
        self.packages.is_empty() && self.reasons.is_empty()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = self.reasons.clone();
        if !self.packages.is_empty() {
            parts.push(format!("install: apt-get install {}", self.packages.join(" ")));
        }
        to.write_str(&parts.join("; "))
    }
}

/// Checks the requirements.
pub fn missing() -> Missing {
    let mut missing = kerberos_missing();
    missing.packages.extend(etcd_missing().packages);
    let absent = PROGRAMS.iter().filter(|(program, _)| find(program).is_none());
    missing.packages.extend(absent.map(|(_, package)| *package));
    missing
        .packages
        .extend(FILES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package));
    if !is_root() {
        missing.reasons.push("the lab needs root, for tap devices and mounts".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        missing
            .reasons
            .push("the lab needs /dev/net/tun: load the module tun, or give it to the container".to_owned());
    }
    if !Path::new("/etc/mtab").exists() {
        missing.reasons.push("ganesha needs /etc/mtab: ln -s ../proc/self/mounts /etc/mtab".to_owned());
    }
    missing
}

/// Checks the requirements of a [`Realm`](crate::Realm) alone.
pub(crate) fn kerberos_missing() -> Missing {
    let absent = KERBEROS.iter().filter(|(program, _)| find(program).is_none());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    Missing { packages, reasons: Vec::new() }
}

/// Checks the requirements of an [`Etcd`](crate::Etcd) alone.
pub(crate) fn etcd_missing() -> Missing {
    let absent = ETCD.iter().filter(|(program, _)| find(program).is_none());
    Missing { packages: absent.map(|(_, package)| *package).collect(), reasons: Vec::new() }
}

/// True if this process has root's rights.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if the lab can work, and false if the environment sets `LEASEHOLD_LAB=skip`. Panics
/// otherwise.
pub fn require() -> bool {
    if std::env::var_os("LEASEHOLD_LAB").is_some_and(|value| value == "skip") {
        return false;
    }
    let missing = missing();
    assert!(
        missing.is_none(),
        "the lab cannot run here: {missing} (LEASEHOLD_LAB=skip leaves its tests out)"
    );
    true
}

/// Finds a program. Debian omits `sbin` from the `PATH` of ordinary users, but the lab's programs are there.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    places
        .filter(|place| !place.is_empty())
        .map(|place| Path::new(place).join(program))
        .find(|path| path.exists())
}
