//! `cargo xtask package`: a Debian package, a tarball, and the tree of a container, of the release build.
//!
//! Both have the same tree: the program, its man pages, its completions, the names under which mount(8) and
//! umount(8) call it, the systemd units, and sample configurations. dpkg-deb makes the package; the texts of
//! `contrib` go in as they are. The container has the program and the libraries that its loader asks for
//! (`contrib/container/Containerfile`).

use crate::steps::{self, root};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of `cargo xtask package`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to put them
    #[arg(long, default_value = "target/package")]
    to: PathBuf,
    /// Package this program instead of a release build
    #[arg(long)]
    program: Option<PathBuf>,
    /// The version of the package, if not that of the program
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    number: String,
}

/// The names under which mount(8) and umount(8) look for the program.
const HELPERS: [&str; 4] =
    ["mount.leasehold", "mount.fuse.leasehold", "umount.leasehold", "umount.fuse.leasehold"];
/// Completions: shell, directory, file.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions", "leasehold"),
    ("zsh", "usr/share/zsh/vendor-completions", "_leasehold"),
    ("fish", "usr/share/fish/vendor_completions.d", "leasehold.fish"),
];

/// Builds both; true if it succeeds.
pub fn run(options: &Options) -> bool {
    let build = || steps::run("cargo", ["build", "--release", "--locked", "--package", "leasehold"], &[]);
    if options.program.is_none() && !build() {
        return false;
    }
    let program = options.program.clone().unwrap_or_else(|| root().join("target/release/leasehold"));
    match package(&program, &options.number, &root().join(&options.to)) {
        Ok(made) => {
            made.iter().for_each(|file| eprintln!("{}", file.display()));
            true
        }
        Err(error) => {
            eprintln!("cargo xtask package: {error}");
            false
        }
    }
}

fn package(program: &Path, version: &str, to: &Path) -> io::Result<Vec<PathBuf>> {
    let architecture = output("dpkg", &["--print-architecture"])?;
    let tree = to.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    lay_out(program, &tree)?;

    let name = format!("leasehold-{version}-linux-{architecture}");
    let tarball = to.join(format!("{name}.tar.gz"));
    let renamed = format!("s,^\\./,{name}/,");
    let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
    let place =
        [&format!("--transform={renamed}"), "-C", text(&tree), "-czf", text(&tarball), "./usr", "./etc"];
    succeed(Command::new("tar").args(owner).args(place))?;

    let control = tree.join("DEBIAN");
    fs::create_dir(&control)?;
    let installed_kib = output("du", &["-sk", text(&tree)])?.split_whitespace().next().map(str::to_owned);
    let fields = format!(
        "Package: leasehold\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Leasehold\n\
         Installed-Size: {}\nSection: net\nPriority: optional\nDepends: libc6 (>= {}), libgcc-s1\n\
         Recommends: fuse3\nSuggests: libgssapi-krb5-2\nDescription: a coherent cache for NFS\n \
         An NFS server to local clients, an NFS client to the origin, and a persistent\n \
         cache between them that holds leases on what it caches.\n",
        installed_kib.unwrap_or_default(),
        glibc(program)?,
    );
    fs::write(control.join("control"), fields)?;
    for script in ["postinst", "prerm", "postrm"] {
        install(&root().join("contrib/debian").join(script), &control.join(script), 0o755)?;
    }
    let package = to.join(format!("leasehold_{version}_{architecture}.deb"));
    succeed(Command::new("dpkg-deb").args(["--root-owner-group", "--build", text(&tree), text(&package)]))?;
    let container = to.join("container");
    if container.exists() {
        fs::remove_dir_all(&container)?;
    }
    lay_out_container(&tree.join("usr/bin/leasehold"), &container)?;
    Ok(vec![package, tarball, container])
}

/// The root of a container: the program, its libraries at the paths where its loader looks for them, and the
/// directories that it writes to.
fn lay_out_container(program: &Path, root: &Path) -> io::Result<()> {
    install(program, &root.join("usr/bin/leasehold"), 0o755)?;
    let told = output("ldd", &[text(program)])?;
    if told.contains("not found") {
        return Err(io::Error::other(format!("a library of the program is missing: {told}")));
    }
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and for the loader its path alone.
    for library in told.split_whitespace().filter(|word| word.starts_with('/')) {
        install(Path::new(library), &root.join(library.trim_start_matches('/')), 0o755)?;
    }
    let passwd = root.join("etc/passwd");
    fs::create_dir_all(root.join("etc"))?;
    fs::write(passwd, "root:x:0:0:root:/:/usr/bin/leasehold\n")?;
    for directory in ["tmp", "var/cache/leasehold", "var/lib/leasehold"] {
        fs::create_dir_all(root.join(directory))?;
    }
    Ok(())
}

/// The tree as it is installed.
fn lay_out(program: &Path, tree: &Path) -> io::Result<()> {
    let contrib = root().join("contrib");
    let binary = tree.join("usr/bin/leasehold");
    install(program, &binary, 0o755)?;
    succeed(Command::new("strip").arg("--strip-debug").arg(&binary))?;
    let helpers = tree.join("usr/sbin");
    fs::create_dir_all(&helpers)?;
    for name in HELPERS {
        symlink("../bin/leasehold", helpers.join(name))?;
    }
    let man = tree.join("usr/share/man/man1");
    fs::create_dir_all(&man)?;
    succeed(Command::new(&binary).arg("man").arg(&man))?;
    for page in fs::read_dir(&man)? {
        succeed(Command::new("gzip").arg("-9n").arg(page?.path()))?;
    }
    for (shell, directory, name) in COMPLETIONS {
        let directory = tree.join(directory);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(name), output(text(&binary), &["completions", shell])?)?;
    }
    for unit in fs::read_dir(contrib.join("systemd"))? {
        let unit = unit?;
        install(&unit.path(), &tree.join("usr/lib/systemd/system").join(unit.file_name()), 0o644)?;
    }
    install(
        &contrib.join("prometheus/leasehold.rules.yml"),
        &tree.join("usr/share/doc/leasehold/leasehold.rules.yml"),
        0o644,
    )?;
    install(
        &contrib.join("grafana/leasehold.json"),
        &tree.join("usr/share/doc/leasehold/grafana.json"),
        0o644,
    )?;
    for sample in ["proxy/example.toml.sample", "mount/example.toml.sample", "exports.toml.sample"] {
        let from = contrib.join("etc/leasehold").join(sample);
        install(&from, &tree.join("etc/leasehold").join(sample), 0o644)?;
    }
    Ok(())
}

/// Copies a file, with the directories above it.
fn install(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

/// The version of glibc whose symbols the program needs.
fn glibc(program: &Path) -> io::Result<String> {
    let symbols = output("objdump", &["-T", text(program)])?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let numbers: Option<Vec<u32>> = rest[..end].split('.').map(|number| number.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() >= 2)
    });
    let newest = versions.max().ok_or_else(|| io::Error::other("the program needs no glibc"))?;
    Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{program} failed: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    let program = command.get_program().to_string_lossy().into_owned();
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program} failed: {status}"))) }
}
