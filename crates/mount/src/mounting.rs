//! Mounting and unmounting: by ourselves as root, through fusermount3 as anybody else.

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

/// What does it for those who are not root.
const HELPER: &str = "fusermount3";
/// The kernel tells at once that nobody answers.
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
    /// Everybody may use it, and not only who mounts it. The kernel then checks mode bits too.
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

/// Why a directory cannot be mounted on, or not be unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory is no good.
    #[error("cannot mount on {directory}: {source}; name a directory that exists and that we may enter")]
    Directory {
        /// As given.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// There is no `/dev/fuse`, or it is not ours to use.
    #[error("cannot open /dev/fuse: {0}; load the kernel module fuse, or give the container this device")]
    Device(io::Error),
    /// mount(2) failed.
    #[error(
        "cannot mount on {directory}: {source}; mounting needs CAP_SYS_ADMIN, or fusermount3 of the package fuse3"
    )]
    Mount {
        /// As given.
        directory: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// fusermount3 is not there or failed.
    #[error(
        "cannot mount on {directory} as an ordinary user: {cause}; install the package fuse3, own the directory, and for allow_other set user_allow_other in /etc/fuse.conf"
    )]
    Helper {
        /// As given.
        directory: PathBuf,
        /// What it says.
        cause: String,
    },
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {major}.{minor}, and we need 7.31; Linux 5.4 is the first that has it")]
    Kernel {
        /// Of its protocol.
        major: u32,
        /// Of its protocol.
        minor: u32,
    },
    /// The file system behind does not answer.
    #[error("the server does not answer for its root: {0}; look at its log")]
    Root(vfs::Status),
    /// The record of what has to be removed cannot be kept.
    #[error("cannot use {path}: {source}; make it readable and writable")]
    State {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// Something that does not fail.
    #[error("cannot start: {0}; are threads limited (ulimit -u)?")]
    Start(io::Error),
}

/// Mounts, and gives the descriptor of the connection.
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

/// Gives a directory that is mounted other flags: read-only or not, `nosuid`, `nodev`, `noexec`, `noatime`. All that the
/// target has besides stays as it was mounted.
///
/// # Errors
/// What mount(2) says: EBUSY if files are open for writing, EPERM without CAP_SYS_ADMIN.
pub fn remount(target: &Target) -> io::Result<()> {
    rustix::mount::mount_remount(&target.directory, flags(target), c"").map_err(io::Error::from)
}

/// What mount(2) and fusermount3 take alike.
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
    /// If nobody uses it.
    Plain,
    /// Out of sight at once, and in fact when nobody uses it any more.
    Lazy,
    /// If nobody uses it; requests that wait for an answer fail. For root; for others it is the same as `Lazy`.
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

/// A directory as it can be mounted on: absolute, without links on the way. One that a process which was killed has left
/// mounted is detached first.
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

/// Is a FUSE file system mounted there whose process is gone? The kernel answers a stat from what it remembers, and
/// remembers nothing of a statfs.
pub fn is_dead(directory: &Path) -> bool {
    if mounted_at(directory).is_none() {
        return false;
    }
    let (answer, answered) = mpsc::channel();
    let asked = directory.to_owned();
    let asking = move || answer.send(rustix::fs::statvfs(&asked).err());
    // A thread, since a process that is there may wait for its server. That is no death.
    let thread = std::thread::Builder::new().name("fuse-probe".to_owned()).spawn(asking);
    thread.is_ok()
        && matches!(answered.recv_timeout(ANSWER_MAX), Ok(Some(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// What is mounted on top there: its type, and the minor number of its device, which for FUSE names the connection.
pub fn mounted_at(directory: &Path) -> Option<(String, u32)> {
    topmost(directory).map(|line| (line.kind, line.minor))
}

/// The flags, as mount(8) writes them, of what is mounted on top there, if it is of this type.
pub fn options_at(directory: &Path, kind: &str) -> Option<String> {
    topmost(directory).filter(|line| line.kind == kind).map(|line| line.options)
}

/// Is this connection mounted anywhere in this name space? What a bind mount shows may be mounted elsewhere too.
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

/// What mountinfo says of a mount.
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

/// mountinfo writes blanks and the like as a backslash and three octal digits.
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

/// Where the kernel shows its connections, if somebody has mounted it there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Breaks a connection: whoever waits for an answer gets an error. Nothing that the server does can hold this up.
pub fn abort(connection: u32) -> io::Result<()> {
    breaker(connection)?.write_all(b"1")
}

/// What breaks a connection when something is written to it. It is never that of another connection with the same number.
pub fn breaker(connection: u32) -> io::Result<File> {
    let path = format!("{CONNECTIONS}/{connection}/abort");
    match File::options().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && rustix::process::geteuid().is_root() => {
            // Where no systemd has done it.
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
