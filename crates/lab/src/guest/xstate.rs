//! Guests on processors with more registers than their kernel supports.
//!
//! Debian's user-mode Linux (6.1) keeps 2,696 bytes of a process's extended state. With AMX a processor has
//! 11,008. The host does not accept a shorter state (`EFAULT` from `PTRACE_SETREGSET`), so the guest would
//! die at its first process.
//!
//! A library that is loaded before the kernel (`LD_PRELOAD`) takes the missing part from the process itself.
//! It costs one extra system call for each system call of the guest, so it is used only on such processors.

use crate::session::host_command;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCE: &str = include_str!("xstate.c");

/// Builds the library in this directory; `None` if the guest's kernel does not need it.
pub(super) fn library(directory: &Path) -> Option<PathBuf> {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !has_amx(&processors) {
        return None;
    }
    let (source, built) = (directory.join("xstate.c"), directory.join("xstate.so"));
    if !built.exists() {
        fs::write(&source, SOURCE)
            .unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", source.display()));
        let text = |path: &Path| path.display().to_string();
        host_command("gcc", &["-O2", "-shared", "-fPIC", "-o", &text(&built), &text(&source)]);
    }
    Some(built)
}

fn has_amx(processors: &str) -> bool {
    let flags = processors.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "amx_tile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amx_is_told_by_its_flag() {
        assert!(has_amx("processor\t: 0\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n"));
        assert!(!has_amx("processor\t: 0\nflags\t\t: fpu avx512f\n") && !has_amx(""));
    }
}
