//! Compiling: with a real compiler if programs can access the tree, else by making the file operations of a
//! compiler.
//!
//! The replay reads a unit and looks for each included header as the compiler does: first beside the unit,
//! then under `include/`. It reads each header once, and writes the object in pieces of the compiler's size.
//! It takes none of the compiler's time; to emulate that too, use [`Compiler::Asleep`].

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::source::INCLUDE;
use super::{STEP_BYTES, read_file, read_open, write_file};
use crate::target::{How, Target};

/// Bytes that a compiler writes at once.
const PIECE_BYTES: usize = 4096;
/// Ratio of the size of an object to that of its source.
const OBJECT_FACTOR: usize = 2;

/// Where the objects are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Objects<'o> {
    /// To the target, in this directory.
    Beside(&'o str),
    /// To a directory of this machine.
    Local(&'o Path),
}

/// Which compiler to use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compiler<'c> {
    /// `cc`, if programs can access the tree; else only its file operations.
    Here,
    /// A machine with its own processor: makes the compiler's file operations here, and sleeps between its
    /// reads and its writes instead of computing. The durations are those of the steps of [`Build::make`];
    /// steps beyond the list do not sleep.
    Asleep(&'c [Duration]),
}

/// A build of one tree.
pub(super) struct Build<'b> {
    pub(super) compiler: Compiler<'b>,
    pub(super) target: &'b dyn Target,
    /// Directory of the source tree in the target.
    pub(super) tree: &'b str,
    pub(super) objects: Objects<'b>,
    /// Paths in the tree; the main unit is last.
    pub(super) units: Vec<String>,
    pub(super) headers: Vec<String>,
}

impl Build<'_> {
    /// Does the work of `make`: checks all dates, compiles each unit, links. Returns the durations of the
    /// steps after the date check.
    pub(super) fn make(&self) -> io::Result<Vec<Duration>> {
        self.check_dates()?;
        let mut steps = Vec::with_capacity(self.units.len() + 1);
        for (step, unit) in self.units.iter().map(Some).chain([None]).enumerate() {
            let started = Instant::now();
            let computing = match self.compiler {
                Compiler::Here => Duration::ZERO,
                Compiler::Asleep(computing) => computing.get(step).copied().unwrap_or_default(),
            };
            match (unit, self.programs()) {
                (Some(unit), Some(mounted)) => self.compile(mounted, unit)?,
                (Some(unit), None) => self.replay(unit, computing)?,
                (None, Some(mounted)) => self.link(mounted)?,
                (None, None) => self.replay_link(computing)?,
            }
            steps.push(started.elapsed());
        }
        Ok(steps)
    }

    /// The directory in which programs can access the tree, if real programs are to run.
    fn programs(&self) -> Option<&Path> {
        if let Compiler::Here = self.compiler { self.target.directory() } else { None }
    }

    fn check_dates(&self) -> io::Result<()> {
        for file in self.units.iter().chain(&self.headers) {
            self.target.stat(&format!("{}/{file}", self.tree))?;
        }
        if let Objects::Beside(_) = self.objects {
            for unit in &self.units {
                match self.target.stat(&self.object(unit)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The path of an object in the target, or its name on this machine.
    fn object(&self, unit: &str) -> String {
        let name = unit.replace('/', "-").replace(".c", ".o");
        match self.objects {
            Objects::Beside(directory) => format!("{directory}/{name}"),
            Objects::Local(_) => name,
        }
    }

    fn object_on_disk(&self, mounted: &Path, unit: &str) -> PathBuf {
        match self.objects {
            Objects::Beside(_) => mounted.join(self.object(unit)),
            Objects::Local(directory) => directory.join(self.object(unit)),
        }
    }

    fn compile(&self, mounted: &Path, unit: &str) -> io::Result<()> {
        let object = self.object_on_disk(mounted, unit);
        let mut command = Command::new("cc");
        command.args(["-w", "-I", INCLUDE, "-c", unit, "-o"]).arg(object);
        run(command.current_dir(mounted.join(self.tree)))
    }

    fn replay(&self, unit: &str, computing: Duration) -> io::Result<()> {
        let path = format!("{}/{unit}", self.tree);
        let text = read_file(self.target, &path)?;
        let mut seen = HashSet::new();
        let mut size = text.len() + self.include(parent(&path), &text, &mut seen)?;
        size = (size / 4).max(text.len() * OBJECT_FACTOR);
        let object = vec![0x7f; size];
        std::thread::sleep(computing);
        match self.objects {
            Objects::Beside(_) => write_file(self.target, &self.object(unit), &object, PIECE_BYTES),
            Objects::Local(directory) => {
                let file = std::fs::File::create(directory.join(self.object(unit)))?;
                BufWriter::with_capacity(PIECE_BYTES, file).write_all(&object)
            }
        }
    }

    /// Reads the headers that a text includes, directly or through other headers. Returns their size in
    /// bytes.
    fn include(&self, beside: &str, text: &[u8], seen: &mut HashSet<String>) -> io::Result<usize> {
        let mut size = 0;
        for name in inclusions(text) {
            let found = self.find(beside, name)?;
            let Some((path, text)) = found else { continue };
            // Include guards make a second inclusion empty, and compilers remember which headers have one.
            if seen.insert(path.clone()) {
                size += text.len() + self.include(parent(&path), &text, seen)?;
            }
        }
        Ok(size)
    }

    fn find(&self, beside: &str, name: &str) -> io::Result<Option<(String, Vec<u8>)>> {
        for path in [format!("{beside}/{name}"), format!("{}/{INCLUDE}/{name}", self.tree)] {
            match self.target.open(&path, How::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => {
                    let mut file = opened?;
                    let text = read_open(&mut *file)?;
                    file.close()?;
                    return Ok(Some((path, text)));
                }
            }
        }
        Ok(None)
    }

    fn link(&self, mounted: &Path) -> io::Result<()> {
        let objects = self.units.iter().map(|unit| self.object_on_disk(mounted, unit));
        run(Command::new("cc").arg("-o").arg(self.object_on_disk(mounted, "program.c")).args(objects))
    }

    fn replay_link(&self, computing: Duration) -> io::Result<()> {
        let mut program = Vec::new();
        for unit in &self.units {
            program.extend(match self.objects {
                Objects::Beside(_) => read_file(self.target, &self.object(unit))?,
                Objects::Local(directory) => std::fs::read(directory.join(self.object(unit)))?,
            });
        }
        std::thread::sleep(computing);
        match self.objects {
            Objects::Beside(directory) => {
                write_file(self.target, &format!("{directory}/program"), &program, STEP_BYTES)
            }
            Objects::Local(directory) => std::fs::write(directory.join("program"), program),
        }
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("cc: {}: {}", output.status, said.lines().next().unwrap_or("no word"))))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The names in `#include "…"`.
fn inclusions(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let name = line.strip_prefix(b"#include \"")?.split(|byte| *byte == b'"').next()?;
        std::str::from_utf8(name).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::inclusions;

    #[test]
    fn inclusions_are_found() {
        let text = b"/* x */\n#include \"a.h\"\n#include <stdio.h>\n#include \"b/c.h\" // y\nint x;\n";
        assert_eq!(inclusions(text).collect::<Vec<_>>(), ["a.h", "b/c.h"]);
    }
}
