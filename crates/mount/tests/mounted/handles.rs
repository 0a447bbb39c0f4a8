//! File handles of programs: name_to_handle_at(2) and open_by_handle_at(2).
//!
//! Promise: opens-by-file-handle

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};
use crate::sys::{FileHandle, handle_of, open_by_handle};

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
            open_by_handle(&root, handle)?.read_to_string(&mut text).map(|_| text)
        };
        assert_eq!(read(&file).unwrap(), "text", "version {version}");
        fs::remove_file(setting.at("directory/file")).unwrap();
        assert_eq!(read(&file).unwrap(), "text", "it has another name");
        fs::rename(setting.at("directory/link"), setting.at("elsewhere")).unwrap();
        assert_eq!(read(&file).unwrap(), "text", "it has another place");
        let number = |file: &File| file.metadata().unwrap().ino();
        let found = number(&open_by_handle(&root, &directory).unwrap());
        assert_eq!(found, fs::metadata(setting.at("directory")).unwrap().ino());
        fs::remove_file(setting.at("elsewhere")).unwrap();
        // The file has no name left after its last close. Until then it has its silly name.
        wait_until(|| read(&file).is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)));
    }
}
