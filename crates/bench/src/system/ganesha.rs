//! nfs-ganesha (Debian's packages) as an origin and as a proxy. It uses version 4, because version 3 needs an
//! rpcbind.

use std::path::Path;
use std::process::Command;

use super::program::Program;
use super::{Address, Error, TestBed, free_port};

/// Pseudo path of the export of both.
pub(super) const EXPORT: &str = "/export";
const SERVER: &str = include_str!("ganesha-vfs.conf.in");
const PROXY: &str = include_str!("ganesha-proxy.conf.in");

/// The reason why it does not run here, if there is one.
pub(super) fn missing(library: &str, packages: &str) -> Option<String> {
    let is_there = |path: &str| Path::new(path).exists();
    let libraries = ["/usr/lib", "/usr/lib64"].into_iter().filter_map(|under| std::fs::read_dir(under).ok());
    let has_library =
        libraries.flatten().flatten().any(|entry| entry.path().join("ganesha").join(library).exists())
            || is_there(&format!("/usr/lib/ganesha/{library}"));
    let has_program = ["/usr/bin/ganesha.nfsd", "/usr/sbin/ganesha.nfsd"].into_iter().any(is_there);
    (!has_program || !has_library).then(|| format!("not installed: apt-get install {packages}"))
}

/// A server that exports a directory.
pub(super) fn server(test_bed: &TestBed, export: &Path, directory: &Path) -> Result<Program, Error> {
    let text = SERVER.replace("@PATH@", &export.to_string_lossy());
    start(test_bed, "ganesha", &text, directory)
}

/// A proxy for a version 4 server.
pub(super) fn proxy(test_bed: &TestBed, origin: &Address, directory: &Path) -> Result<Program, Error> {
    let text = PROXY
        .replace("@SERVER@", &origin.server.ip().to_string())
        .replace("@SERVER_PORT@", &origin.server.port().to_string())
        .replace("@SERVER_PATH@", &origin.export);
    start(test_bed, "ganesha-proxy", &text, directory)
}

fn start(test_bed: &TestBed, name: &str, text: &str, directory: &Path) -> Result<Program, Error> {
    let listen = free_port()?;
    let mountport = free_port()?;
    let text = text
        .replace("@ADDRESS@", &listen.ip().to_string())
        .replace("@PORT@", &listen.port().to_string())
        .replace("@MOUNTPORT@", &mountport.port().to_string())
        .replace("@STATE@", &directory.to_string_lossy());
    let (file, recovery) = (directory.join("ganesha.conf"), directory.join("recovery"));
    std::fs::create_dir_all(&recovery)
        .and_then(|()| std::fs::write(&file, text))
        .map_err(Error::io(format!("cannot write {}", file.display())))?;
    let mut command = Command::new("ganesha.nfsd");
    let log = directory.join("ganesha.log");
    command.arg("-F").arg("-f").arg(&file).arg("-p").arg(directory.join("ganesha.pid")).arg("-L").arg(&log);
    Program::start(&test_bed.interrupt, name, command, listen, &directory.join("ganesha.out"))
}
