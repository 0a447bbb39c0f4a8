//! Mounting and unmounting: with mount(2) for root, through fusermount3 for other users.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::device;

/// The program that mounts and unmounts for users other than root.
const HELPER: &str = "fusermount3";
/// Limit of the statfs probe in `is_dead`. If the process is gone, the kernel answers at once.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Where and how to mount.
#[derive(Clone, Debug)]
pub struct Target {
    /// The directory to mount on.
    pub directory: PathBuf,
    /// What `mount` and `df` show as the device.
    pub source: String,
    /// `ro`
    pub read_only: bool,
    /// `nosuid`
    pub nosuid: bool,
    /// `nodev`
    pub nodev: bool,
    /// `noexec`
    pub noexec: bool,
    /// `noatime`
    pub noatime: bool,
    /// All users may use the mount, not only the one that mounted it. The kernel then checks mode bits too.
    pub allow_other: bool,
    /// Largest READ in bytes.
    pub max_read: u32,
}

impl Target {
    /// The defaults for a directory.
    pub fn new(directory: impl Into<PathBuf>, source: impl Into<String>) -> Target {
        Target {
            directory: directory.into(),
            source: source.into(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            allow_other: false,
            max_read: 1 << 20,
        }
    }
}

/// Why a mount or an unmount fails.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("cannot mount on {directory}: {source}; name a directory that exists and that we may enter")]
    Directory {
        /// As given.
        directory: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// `/dev/fuse` does not exist, or this process may not use it.
    #[error("cannot open /dev/fuse: {0}; load the kernel module fuse, or give the container this device")]
    Device(io::Error),
    /// mount(2) failed.
    #[error(
        "cannot mount on {directory}: {source}; mounting needs CAP_SYS_ADMIN, or fusermount3 of the package fuse3"
    )]
    Mount {
        /// As given.
        directory: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// fusermount3 is missing or failed.
    #[error(
        "cannot mount on {directory} as an ordinary user: {cause}; install the package fuse3, own the directory, and for allow_other set user_allow_other in /etc/fuse.conf"
    )]
    Helper {
        /// As given.
        directory: PathBuf,
        /// Its error message.
        cause: String,
    },
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {major}.{minor}, and we need 7.31; Linux 5.4 is the first that has it")]
    Kernel {
        /// Major version of its protocol.
        major: u32,
        /// Minor version of its protocol.
        minor: u32,
    },
    /// The file system below does not answer.
    #[error("the server does not answer for its root: {0}; look at its log")]
    Root(vfs::Status),
    /// The record of silly names cannot be read or written.
    #[error("cannot use {path}: {source}; make it readable and writable")]
    State {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A thread or a task could not be started.
    #[error("cannot start: {0}; are threads limited (ulimit -u)?")]
    Start(io::Error),
}

/// Mounts, and returns the descriptor of the connection.
pub fn mount(target: &Target) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() { mount_directly(target) } else { mount_by_helper(target) }
}

fn mount_directly(target: &Target) -> Result<OwnedFd, MountError> {
    let failed = |source: io::Error| MountError::Mount { directory: target.directory.clone(), source };
    let device = device::open().map_err(|errno| MountError::Device(errno.into()))?;
    let mode = std::fs::metadata(&target.directory).map_err(failed)?.mode() & libc::S_IFMT;
    let mut data = format!("fd={},rootmode={mode:o},user_id=0,group_id=0", device.as_raw_fd());
    data.push_str(&common_options(target));
    let data = std::ffi::CString::new(data).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    rustix::mount::mount(&target.source, &target.directory, "fuse.leasehold", flags(target), &*data)
        .map_err(|errno| failed(errno.into()))?;
    Ok(device)
}

fn flags(target: &Target) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (target.read_only, MountFlags::RDONLY),
        (target.nosuid, MountFlags::NOSUID),
        (target.nodev, MountFlags::NODEV),
        (target.noexec, MountFlags::NOEXEC),
        (target.noatime, MountFlags::NOATIME),
    ] {
        flags.set(flag, wanted);
    }
    flags
}

/// Changes the flags of a mount: read-only, `nosuid`, `nodev`, `noexec`, `noatime`. Everything else in
/// `target` is ignored and stays as it was mounted.
///
/// # Errors
/// Those of mount(2): EBUSY if files are open for writing, EPERM without CAP_SYS_ADMIN.
pub fn remount(target: &Target) -> io::Result<()> {
    rustix::mount::mount_remount(&target.directory, flags(target), c"").map_err(io::Error::from)
}

/// Options that mount(2) and fusermount3 share.
fn common_options(target: &Target) -> String {
    let others = if target.allow_other { ",allow_other,default_permissions" } else { "" };
    format!(",max_read={}{others}", target.max_read)
}

/// fusermount3 opens the device, mounts it, and sends the descriptor over a socket.
fn mount_by_helper(target: &Target) -> Result<OwnedFd, MountError> {
    let failed = |cause: String| MountError::Helper { directory: target.directory.clone(), cause };
    let broken = |errno: Errno| failed(io::Error::from(errno).to_string());
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)
            .map_err(broken)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(broken)?;
    let mut options = format!("fsname={},subtype=leasehold", escaped(&target.source));
    options.push_str(&common_options(target));
    for (wanted, word) in [
        (target.read_only, ",ro"),
        (target.nosuid, ",nosuid"),
        (target.nodev, ",nodev"),
        (target.noexec, ",noexec"),
        (target.noatime, ",noatime"),
    ] {
        options.push_str(if wanted { word } else { "" });
    }
    let output = Command::new(HELPER)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(&target.directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("{HELPER}: {error}")))?;
    drop(theirs);
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(failed(told.trim().replace('\n', " ")));
    }
    receive(&ours).map_err(broken)
}

/// A comma ends an option unless there is a backslash before it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

fn receive(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(Errno::PROTO)
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Fails if the mount is busy.
    Plain,
    /// The mount point disappears at once. The kernel unmounts when the last user is gone.
    Lazy,
    /// Fails if the mount is busy; requests that wait for an answer fail. Only root can force; for other
    /// users it is the same as `Lazy`.
    Forced,
}

/// Unmounts.
pub fn unmount(directory: &Path, how: How) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, how == How::Lazy);
        flags.set(UnmountFlags::FORCE, how == How::Forced);
        return rustix::mount::unmount(directory, flags).map_err(io::Error::from);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args((how != How::Plain).then_some("-z")).arg("--").arg(directory);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The absolute path of a directory, without symbolic links, ready to be mounted on. A mount that a killed
/// process left there is detached first.
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    let unusable = |source: io::Error| MountError::Directory { directory: directory.to_owned(), source };
    for _ in 0..8 {
        let absolute = std::path::absolute(directory).map_err(unusable)?;
        if !is_dead(&absolute) {
            break;
        }
        unmount(&absolute, How::Lazy).map_err(unusable)?;
        tracing::info!("detached what a process that is gone had left mounted on {}", absolute.display());
    }
    let directory = std::fs::canonicalize(directory).map_err(unusable)?;
    if !std::fs::metadata(&directory).map_err(unusable)?.is_dir() {
        return Err(unusable(io::ErrorKind::NotADirectory.into()));
    }
    Ok(directory)
}

/// Is a FUSE file system mounted there whose process is gone? The probe is statfs(2): the kernel caches no
/// statfs reply, but may answer a stat from its attribute cache.
pub fn is_dead(directory: &Path) -> bool {
    if mounted_at(directory).is_none() {
        return false;
    }
    let (answer, answered) = mpsc::channel();
    let asked = directory.to_owned();
    let asking = move || answer.send(rustix::fs::statvfs(&asked).err());
    // The probe runs in its own thread, since a live process may be waiting for its server. A timeout means
    // alive.
    let thread = std::thread::Builder::new().name("fuse-probe".to_owned()).spawn(asking);
    thread.is_ok()
        && matches!(answered.recv_timeout(ANSWER_MAX), Ok(Some(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// The topmost mount on a directory: its type and the minor number of its device. For FUSE, that number
/// names the connection.
pub fn mounted_at(directory: &Path) -> Option<(String, u32)> {
    topmost(directory).map(|line| (line.kind, line.minor))
}

/// The flags of the topmost mount on a directory, as mount(8) writes them, if the mount has this type.
pub fn options_at(directory: &Path, kind: &str) -> Option<String> {
    topmost(directory).filter(|line| line.kind == kind).map(|line| line.options)
}

/// Is this connection mounted anywhere in this mount name space? A bind mount shows it at several places.
pub fn has_mounts(connection: u32) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("0:{connection}");
    table.lines().any(|line| line.split(' ').nth(2) == Some(&device))
}

fn topmost(directory: &Path) -> Option<MountLine> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(|line| mount_line(line, directory)).next_back()
}

/// The fields that are used from a line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct MountLine {
    kind: String,
    minor: u32,
    options: String,
}

fn mount_line(line: &[u8], directory: &Path) -> Option<MountLine> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let device = text(fields.nth(2)?);
    let at = unescaped(fields.nth(1)?);
    if Path::new(&at) != directory {
        return None;
    }
    let options = text(fields.next()?);
    let kind = text(fields.skip_while(|field| *field != b"-").nth(1)?);
    let minor = device.split_once(':')?.1.parse().ok()?;
    Some(MountLine { kind, minor, options })
}

/// mountinfo writes blanks and other special characters as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let value = octal.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok());
        bytes.push(value.unwrap_or(field[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    std::ffi::OsStr::from_bytes(&bytes).to_owned()
}

/// Where the kernel shows the FUSE connections, if fusectl is mounted there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts a connection: all requests that wait for an answer fail. This does not wait for the server.
pub fn abort(connection: u32) -> io::Result<()> {
    breaker(connection)?.write_all(b"1")
}

/// Opens the `abort` file of a connection; any write to it aborts the connection. The open file keeps
/// naming this connection, even if the number is reused.
pub fn breaker(connection: u32) -> io::Result<File> {
    let path = format!("{CONNECTIONS}/{connection}/abort");
    match File::options().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && rustix::process::geteuid().is_root() => {
            // fusectl is not mounted yet, as on a system without systemd.
            rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), None)?;
            File::options().write(true).open(&path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line =
            b"99 24 0:57 / /mnt/with\\040blank rw,nosuid shared:9 - fuse.leasehold nfs://h/e rw,user_id=0";
        let at = Path::new("/mnt/with blank");
        let (kind, options) = ("fuse.leasehold".to_owned(), "rw,nosuid".to_owned());
        assert_eq!(mount_line(line, at), Some(MountLine { kind, minor: 57, options }));
        assert_eq!(mount_line(line, Path::new("/mnt")), None);
        assert_eq!(mount_line(b"", at), None);
    }

    #[test]
    fn commas_in_a_source_do_not_end_it() {
        assert_eq!(escaped("nfs://h/a,b\\c"), "nfs://h/a\\,b\\\\c");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = prepare(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all") && error.contains("name a directory"), "{error}");
    }
}
