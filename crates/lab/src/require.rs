//! What the lab needs of the machine, and how to say that it is not there.

use std::path::Path;

/// Programs the lab runs and the Debian package that has each.
const PROGRAMS: [(&str, &str); 20] = [
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
];

/// Files the lab needs that are no programs.
const FILES: [(&str, &str); 1] = [("/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so", "nfs-ganesha-vfs")];

/// What stands between this machine and the lab.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Debian packages to install.
    pub packages: Vec<&'static str>,
    /// What no package mends, one sentence each.
    pub reasons: Vec<String>,
}

impl Missing {
    /// Is there nothing in the way?
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

/// Looks what is missing.
pub fn missing() -> Missing {
    let mut missing = Missing::default();
    let absent = PROGRAMS.iter().filter(|(program, _)| !on_path(program));
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

/// Does this process have root's rights?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Goes on only where the lab can work: true if it can, false if the environment says `LEASEHOLD_LAB=skip`, a panic otherwise.
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

/// Debian keeps `sbin` off the path of ordinary users; the lab's programs are there.
fn on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    places.filter(|place| !place.is_empty()).any(|place| Path::new(place).join(program).exists())
}
