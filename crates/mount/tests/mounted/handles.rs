//! File handles of programs: name_to_handle_at(2) and open_by_handle_at(2).
#![allow(unsafe_code, reason = "neither the standard library nor rustix has them")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};

/// `struct file_handle` with as much room as the kernel ever asks for.
#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (path, mut mount) = (CString::new(path.as_os_str().as_bytes()).unwrap(), 0);
    // SAFETY: the path ends with NUL, and the handle has the room that it says it has.
    let result = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &File, handle: &FileHandle) -> io::Result<File> {
    // SAFETY: the handle is one that name_to_handle_at has filled in. The kernel only reads it.
    let fd = unsafe {
        libc::open_by_handle_at(mount.as_raw_fd(), (&raw const *handle).cast_mut().cast(), libc::O_RDONLY)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened just now, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[test]
fn a_file_is_opened_by_its_handle_whatever_its_names_are() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        fs::create_dir(setting.at("directory")).unwrap();
        fs::write(setting.at("directory/file"), b"text").unwrap();
        fs::hard_link(setting.at("directory/file"), setting.at("directory/link")).unwrap();
        let root = File::open(setting.mnt()).unwrap();
        let file = handle_of(&setting.at("directory/file"));
        let directory = handle_of(&setting.at("directory"));
        let read = |handle: &FileHandle| {
            let mut text = String::new();
            open(&root, handle)?.read_to_string(&mut text).map(|_| text)
        };
        assert_eq!(read(&file).unwrap(), "text", "version {version}");
        fs::remove_file(setting.at("directory/file")).unwrap();
        assert_eq!(read(&file).unwrap(), "text", "it has another name");
        fs::rename(setting.at("directory/link"), setting.at("elsewhere")).unwrap();
        assert_eq!(read(&file).unwrap(), "text", "it has another place");
        let number = |file: &File| file.metadata().unwrap().ino();
        let found = number(&open(&root, &directory).unwrap());
        assert_eq!(found, fs::metadata(setting.at("directory")).unwrap().ino());
        fs::remove_file(setting.at("elsewhere")).unwrap();
        // It has none, once its last close has come through: until then it is one that was removed while it was open.
        wait_until(|| read(&file).is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)));
    }
}
