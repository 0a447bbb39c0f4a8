//! `cargo xtask lab --kernels`: the lab's tests with guests of newer kernels than the host's release has. A
//! nightly run.
//!
//! Debian packages user-mode Linux for each release. apt fetches the package of another release and the C
//! library that the package needs. Its lists, cache and configuration are below `target/lab`, so the
//! system's apt is not affected. The mirror is the one that the machine is configured for. apt checks
//! signatures against the machine's keys.

use crate::programs::{Programs, TestProgram};
use crate::results::Results;
use crate::steps::{Steps, root};
use clap::ValueEnum;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The packages to fetch: the kernel and the library.
const PACKAGES: [&str; 2] = ["user-mode-linux", "libc6"];
/// The keys of Debian's releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The path of the loader in the packaged program.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
/// The path that replaces it: the loader in the directory of the C library.
const OUR_LOADER: &[u8] = b"ld-linux-x86-64.so.2\0";
/// The variable that tells the lab which kernel to boot.
const VARIABLE: &str = "LEASEHOLD_LAB_KERNEL";

/// A kernel for guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// The kernel of Debian 13
    #[value(name = "6.12")]
    Linux6_12,
    /// The kernel of Debian unstable, a client that asks for directory delegations
    #[value(name = "7.2")]
    Linux7_2,
}

impl Kernel {
    const ALL: [Kernel; 2] = [Kernel::Linux6_12, Kernel::Linux7_2];

    /// The version, and the Debian release that packages it.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Kernel::Linux6_12 => ("6.12", "trixie"),
            Kernel::Linux7_2 => ("7.2", "sid"),
        }
    }

    /// Returns the directory with the kernel, and fetches the kernel if it is missing. The error is one line
    /// that says why it cannot be fetched.
    pub fn provide(self) -> Result<PathBuf, String> {
        let (version, release) = self.names();
        let directory = root().join("target/lab/kernels").join(version);
        if directory.join("linux").exists() {
            return Ok(directory);
        }
        let wanted = |what: String| format!("Linux {version} for guests: {what}");
        if std::env::consts::ARCH != "x86_64" {
            return Err(wanted("Debian packages it for amd64 alone".to_owned()));
        }
        let mirror = mirror().map_err(wanted)?;
        let apt = Apt { directory: root().join("target/lab/apt").join(release) };
        eprintln!("fetching user-mode-linux of Debian {release} from {mirror}");
        apt.configure(&mirror, release).map_err(|error| wanted(error.to_string()))?;
        apt.run(&["update"], &apt.directory).map_err(wanted)?;
        let debs = apt.directory.join("debs");
        let unpacked = root().join("target/lab/kernels").join(format!("{version}.part"));
        let fresh = [&debs, &unpacked].into_iter().try_for_each(|directory| {
            let _ = fs::remove_dir_all(directory); // an interrupted run may have left it
            fs::create_dir_all(directory)
        });
        fresh.map_err(|error| wanted(error.to_string()))?;
        let download: Vec<&str> = ["download"].into_iter().chain(PACKAGES).collect();
        apt.run(&download, &debs).map_err(wanted)?;
        unpack(&debs, &unpacked).map_err(wanted)?;
        let program = program(&unpacked).map_err(|error| wanted(error.to_string()))?;
        fs::rename(program, unpacked.join("linux"))
            .and_then(|()| fs::rename(&unpacked, &directory))
            .map_err(|error| wanted(error.to_string()))?;
        let _ = fs::remove_dir_all(&apt.directory); // lists and packages are not needed again
        Ok(directory)
    }
}

/// An apt with a configuration of its own.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Configures one source. Only the keys are the system's.
    fn configure(&self, mirror: &str, release: &str) -> io::Result<()> {
        for place in ["lists/partial", "cache/archives/partial", "sources", "none"] {
            fs::create_dir_all(self.directory.join(place))?;
        }
        let keys =
            if Path::new(KEYRING).exists() { format!("Signed-By: {KEYRING}\n") } else { String::new() };
        let source = format!("Types: deb\nURIs: {mirror}\nSuites: {release}\nComponents: main\n{keys}");
        fs::write(self.directory.join("sources/debian.sources"), source)?;
        fs::write(self.directory.join("status"), "")
    }

    /// Runs apt-get in a directory. The error contains the first error message of apt-get.
    fn run(&self, arguments: &[&str], at: &Path) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        let places = [
            ("Dir::Etc::sourcelist", "no-list"),
            ("Dir::Etc::sourceparts", "sources"),
            ("Dir::Etc::preferences", "no-preferences"),
            ("Dir::Etc::preferencesparts", "none"),
            ("Dir::State", ""),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ];
        for (option, place) in places {
            command.arg("-o").arg(format!("{option}={}", self.directory.join(place).display()));
        }
        // The files may be below a home directory that apt's own user cannot enter.
        command.args(["-q", "-o", "APT::Sandbox::User=root"]).args(arguments).current_dir(at);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("apt-get: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = said.lines().find(|line| line.starts_with("E:")).unwrap_or("it says nothing");
        Err(format!("apt-get {}: {complaint}", arguments.join(" ")))
    }
}

/// The Debian mirror in the machine's configuration.
fn mirror() -> Result<String, String> {
    let codename = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = codename.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("");
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]);
    let output = apt.stdin(Stdio::null()).output().map_err(|error| format!("apt-get: {error}"))?;
    of_release(&String::from_utf8_lossy(&output.stdout), codename).ok_or_else(|| {
        format!("apt has no source of Debian {codename}: add one to its sources, and run again")
    })
}

/// The address of the first source for a release. `sources` has lines of address and release.
fn of_release(sources: &str, release: &str) -> Option<String> {
    let mut sources = sources.lines().filter_map(|line| line.split_once(' '));
    sources.find(|(_, of)| *of == release || *of == "stable").map(|(address, _)| address.to_owned())
}

/// Unpacks all packages of a directory into another.
fn unpack(debs: &Path, to: &Path) -> Result<(), String> {
    let packages = fs::read_dir(debs).map_err(|error| format!("{}: {error}", debs.display()))?;
    for package in packages.flatten() {
        let output = Command::new("dpkg").arg("-x").arg(package.path()).arg(to).output();
        let output = output.map_err(|error| format!("dpkg: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
    }
    Ok(())
}

/// Makes a copy of the packaged program that finds its loader in its working directory; returns the path of
/// the copy.
///
/// The loader cannot run the program as an argument, because user-mode Linux measures where its own heap
/// begins.
fn program(unpacked: &Path) -> io::Result<PathBuf> {
    let mut image = fs::read(unpacked.join("usr/bin/linux.uml"))?;
    set_loader(&mut image).ok_or_else(|| io::Error::other("linux.uml names another loader than expected"))?;
    let path = unpacked.join("linux.part");
    fs::write(&path, image)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn set_loader(image: &mut [u8]) -> Option<()> {
    let at = image.windows(LOADER.len()).position(|bytes| bytes == LOADER)?;
    let (ours, rest) = image[at..at + LOADER.len()].split_at_mut(OUR_LOADER.len());
    ours.copy_from_slice(OUR_LOADER);
    rest.fill(0);
    Some(())
}

/// Runs the lab's tests with one kernel, or with all. If `only` is not empty, runs the tests whose names
/// contain one of its words. True if all pass.
pub fn run(kernel: Option<Kernel>, only: &[String]) -> bool {
    let kernels = kernel.map_or(Kernel::ALL.to_vec(), |kernel| vec![kernel]);
    let mut steps = Steps::default();
    let Some(programs) = Programs::build() else { return false };
    let in_lab = |program: &TestProgram| program.tests_in_lab().is_some();
    let programs: Vec<TestProgram> = programs.tests.into_iter().filter(in_lab).collect();
    for kernel in kernels {
        let (version, _) = kernel.names();
        steps.step_with_note(&format!("Linux {version}"), || match kernel.provide() {
            Ok(directory) => tests(&programs, (VARIABLE, &directory.to_string_lossy()), only),
            Err(missing) => {
                eprintln!("{missing}");
                (false, missing)
            }
        });
    }
    steps.summarize("cargo xtask lab --kernels");
    steps.passed()
}

fn tests(programs: &[TestProgram], kernel: (&str, &str), only: &[String]) -> (bool, String) {
    let mut counts = Results::default();
    let mut passed = true;
    for program in programs {
        let tests: Vec<&str> = match program.tests_in_lab() {
            Some(tests) if only.is_empty() => tests.to_vec(),
            _ => only.iter().map(String::as_str).collect(),
        };
        passed &= program.run(&[kernel], &tests, |line| counts.add(line));
    }
    (passed, counts.to_string())
}

#[cfg(test)]
mod tests {
    use super::{LOADER, OUR_LOADER, of_release, set_loader};

    #[test]
    fn the_mirror_is_that_of_the_machines_own_release() {
        let sources = "http://other/apt cloud-bookworm\nhttp://mirror/debian/ bookworm-updates\nhttp://mirror/debian/ bookworm\n";
        assert_eq!(of_release(sources, "bookworm").as_deref(), Some("http://mirror/debian/"));
        assert_eq!(
            of_release("http://mirror/debian/ stable\n", "bookworm").as_deref(),
            Some("http://mirror/debian/")
        );
        assert_eq!(of_release(sources, "trixie"), None);
    }

    #[test]
    fn a_program_finds_its_loader_beside_the_library() {
        let mut image = [b"\x7fELF", LOADER, b"rest"].concat();
        let length = image.len();
        assert!(set_loader(&mut image).is_some());
        assert_eq!(image.len(), length);
        assert!(image[4..].starts_with(OUR_LOADER) && image.ends_with(b"\0\0\0\0rest"));
        assert!(set_loader(&mut image).is_none());
    }
}
