//! The kernel that guests run: Debian's for this release, or another that `cargo xtask lab --kernels` has
//! fetched.
//!
//! `LEASEHOLD_LAB_KERNEL` names a directory with the unpacked packages of another release: `user-mode-linux`
//! and the C library that it needs. The program there is called `linux`, and the path of its loader is
//! relative to the directory of the library. All other programs in a guest are still the host's.

use crate::guest::xstate;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the directory.
const VARIABLE: &str = "LEASEHOLD_LAB_KERNEL";
/// Debian's own kernel, found in `PATH`.
const DEBIAN: &str = "linux.uml";
/// Path of the C library in the directory.
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu";
/// Path of the modules: one directory, named by the kernel's release.
const MODULES: &str = "usr/lib/uml/modules";

/// The directory in the environment variable.
pub(super) fn of_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A kernel that guests run.
#[derive(Debug)]
pub(super) struct Kernel {
    /// `None` means the host's own package.
    unpacked: Option<PathBuf>,
}

impl Kernel {
    /// The kernel in a directory, or else the host's own.
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

    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        self.unpacked.as_ref().map_or_else(|| DEBIAN.to_owned(), |unpacked| unpacked.display().to_string())
    }

    /// A command that runs the kernel on one processor with an empty environment. The caller appends kernel
    /// options. `directory` is the lab's directory.
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
        // The loader's path in the program is relative, and only this program may use the library.
        let library = unpacked.join(LIBRARY);
        command.current_dir(&library).arg("env").arg(format!("LD_LIBRARY_PATH={}", library.display()));
        command.arg(unpacked.join("linux"));
        // A faster way to intercept system calls. Kernels before 6.16 pass the word on to the first process.
        command.arg("seccomp=on").arg(format!("LAB_MODULES={}", unpacked.join(MODULES).display()));
        command
    }
}
