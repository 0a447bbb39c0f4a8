//! The Debian packages that the tests need: installs them as root, and otherwise names them.

use crate::steps;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file in which old programs look for mounts.
const MTAB: &str = "/etc/mtab";
/// The program that invoke-rc.d asks whether it may start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Services in the packages that no test needs. They would take ports, now and after each boot.
const SERVICES: [&str; 9] = [
    "etcd.service",
    "krb5-admin-server.service",
    "krb5-kdc.service",
    "nfs-ganesha.service",
    "nfs-ganesha-lock.service",
    "nfs-server.service",
    "prometheus.service",
    "rpcbind.service",
    "rpcbind.socket",
];

/// Installs missing packages if asked. The error names what the lab still lacks.
pub fn provide(install: bool) -> Result<(), String> {
    let missing = lab::missing();
    if install && lab::is_root() && !missing.packages.is_empty() {
        eprintln!("installing {}", missing.packages.join(" "));
        apt_install(&missing.packages);
    }
    if install && lab::is_root() && !Path::new(MTAB).exists() {
        // Debian's installer makes this link, but a minimal tree lacks it. If it cannot be made,
        // `lab::missing` reports it.
        let _ = std::os::unix::fs::symlink("../proc/self/mounts", MTAB);
    }
    let missing = lab::missing();
    if missing.is_none() { Ok(()) } else { Err(missing.to_string()) }
}

/// Installs without questions. Fetches the package lists only if the first attempt fails.
fn apt_install(packages: &[&str]) {
    if !steps::succeeds("apt-get", &["--version"]) {
        eprintln!("this machine has no apt-get; what to install is named by Debian's packages");
        return;
    }
    let _quiet = NoServices::begin();
    let install = ["install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"];
    let arguments: Vec<&str> = install.into_iter().chain(packages.iter().copied()).collect();
    if !apt_get(&arguments) {
        apt_get(&["update"]);
        apt_get(&arguments);
    }
}

fn apt_get(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Keeps packages from starting services during their installation. Dropping the value also disables the new
/// services for the next boot.
struct NoServices {
    enabled_before: Vec<&'static str>,
    policy_is_ours: bool,
}

impl NoServices {
    fn begin() -> NoServices {
        let enabled_before = SERVICES.into_iter().filter(|service| is_enabled(service)).collect();
        let policy_is_ours = !Path::new(POLICY).exists()
            && fs::write(POLICY, "#!/bin/sh\nexit 101\n").is_ok()
            && fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)).is_ok();
        NoServices { enabled_before, policy_is_ours }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.policy_is_ours {
            let _ = fs::remove_file(POLICY);
        }
        for service in SERVICES {
            if !self.enabled_before.contains(&service) && is_enabled(service) {
                steps::succeeds("systemctl", &["disable", service]);
            }
        }
    }
}

fn is_enabled(service: &str) -> bool {
    Path::new("/run/systemd/system").exists() && steps::succeeds("systemctl", &["is-enabled", service])
}
