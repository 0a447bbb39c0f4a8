//! Which kernel guests run: Debian's for this release, or another that `cargo xtask lab --kernels` has fetched.
//!
//! `LEASEHOLD_LAB_KERNEL` names a directory with the unpacked packages of another release: a `user-mode-linux` and the C
//! library that it needs. Its program is found as `linux`, with a loader's path that is relative to the library's
//! directory. The programs in a guest are the host's all the same.

use crate::guest::xstate;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the directory.
const VARIABLE: &str = "LEASEHOLD_LAB_KERNEL";
/// Debian's own, found on the path.
const DEBIAN: &str = "linux.uml";
/// Where the C library is, in the directory.
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu";
/// Where the modules are: one directory, named by the kernel's release.
const MODULES: &str = "usr/lib/uml/modules";

/// The directory that the environment names.
pub(super) fn of_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A kernel that guests run.
#[derive(Debug)]
pub(super) struct Kernel {
    /// None: the host's own package.
    unpacked: Option<PathBuf>,
}

impl Kernel {
    /// That of a directory, or else the host's own.
    pub(super) fn of(unpacked: Option<&Path>) -> Kernel {
        if let Some(directory) = unpacked {
            assert!(
                directory.join("linux").exists(),
                "lab: {} has no program linux: cargo xtask lab --kernels fetches kernels",
                directory.display()
            );
        }
        Kernel { unpacked: unpacked.map(Path::to_owned) }
    }

    /// Its name for messages.
    pub(super) fn name(&self) -> String {
        self.unpacked.as_ref().map_or_else(|| DEBIAN.to_owned(), |unpacked| unpacked.display().to_string())
    }

    /// A command that runs it on one processor with nothing in its environment; options of the kernel are to follow.
    /// `directory` is the stay's.
    pub(super) fn command(&self, processor: usize, directory: &Path) -> Command {
        let mut command = Command::new("taskset");
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", directory).args(["-c", &processor.to_string()]);
        let Some(unpacked) = &self.unpacked else {
            if let Some(library) = xstate::library(directory) {
                command.env("LD_PRELOAD", library);
            }
            command.arg(DEBIAN);
            return command;
        };
        // The loader's path in the program is relative, and the library is for the program alone.
        let library = unpacked.join(LIBRARY);
        command.current_dir(&library).arg("env").arg(format!("LD_LIBRARY_PATH={}", library.display()));
        command.arg(unpacked.join("linux"));
        // A faster way to intercept system calls. Kernels before 6.16 take the word for one of the first process's.
        command.arg("seccomp=on").arg(format!("LAB_MODULES={}", unpacked.join(MODULES).display()));
        command
    }
}
