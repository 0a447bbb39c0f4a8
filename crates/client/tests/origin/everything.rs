//! Runs once everything that every origin supports in every version, and holds helpers that the tests of each
//! version share.

use bytes::Bytes;
use vfs::{
    AccessMask, Caller, CreateHow, Device, Entry, FileSystem, FileType, Handle, ReadDir, SetAttributes,
    SetTime, Stability, StateidBasis, Status, Timestamp,
};

use crate::scripted::name;

/// An origin, and a caller.
pub struct Bench<F> {
    pub fs: F,
    pub root: Handle,
    pub caller: Caller,
    pub none: SetAttributes,
}

impl<F: FileSystem> Bench<F> {
    pub fn new(fs: F, root: Handle) -> Bench<F> {
        Bench { fs, root, caller: Caller::unix(0, 0, &[]), none: SetAttributes::default() }
    }

    async fn write(&self, file: &Handle, data: Bytes) {
        let mut sent = 0;
        while sent < data.len() {
            let rest = data.slice(sent..);
            let written = self.fs.write(
                &self.caller,
                file,
                StateidBasis::Anonymous,
                sent as u64,
                rest,
                Stability::Unstable,
            );
            let written = written.await.unwrap();
            assert!(written.count > 0 && written.wcc.after.is_some());
            sent += written.count as usize;
        }
        self.fs.commit(&self.caller, file, 0, 0).await.unwrap();
    }

    async fn read(&self, file: &Handle) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let read = self
                .fs
                .read(&self.caller, file, StateidBasis::Anonymous, all.len() as u64, u32::MAX)
                .await
                .unwrap();
            all.extend_from_slice(&read.data.to_bytes().unwrap());
            if read.eof {
                assert_eq!(read.attributes.unwrap().size, all.len() as u64);
                return all;
            }
        }
    }

    async fn list(&self, directory: &Handle, bytes: u32, plus: bool) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes,
            plus,
            want_directory_lease: false,
            names_suffice: false,
        };
        loop {
            let listing = self.fs.readdir(&self.caller, directory, part).await.unwrap();
            (part.verifier, part.cookie) =
                (listing.verifier, listing.entries.last().map_or(0, |last| last.cookie));
            entries.extend(listing.entries);
            if listing.eof {
                return entries;
            }
        }
    }

    /// Creates, writes, reads, changes and removes a file of this name.
    pub async fn files(&self, file_name: &[u8]) {
        let Bench { fs, root, caller, none } = self;
        let mode = SetAttributes { mode: Some(0o640), ..*none };
        let made = fs.create(caller, root, &name(file_name), CreateHow::Guarded, &mode).await.unwrap();
        let file = made.node.handle;
        assert_eq!(made.node.attributes.unwrap().mode, 0o640);
        assert!(made.directory.after.is_some());
        let again = fs.create(caller, root, &name(file_name), CreateHow::Guarded, &mode).await.unwrap_err();
        assert_eq!(again.status, Status::Exist);
        fs.create(caller, root, &name(file_name), CreateHow::Unchecked, none).await.unwrap();

        let data: Bytes = (0..3_000_001u32).map(|at| (at * 7 / 3) as u8).collect();
        self.write(&file, data.clone()).await;
        assert!(self.read(&file).await == data);
        let past = fs.read(caller, &file, StateidBasis::Anonymous, 1 << 32, 10).await.unwrap();
        assert!(past.eof && past.data.is_empty());

        let ctime = fs.getattr(caller, &file).await.unwrap().ctime;
        let time = Timestamp::new(1_000_000_000, 5);
        let set = SetAttributes { size: Some(3), mtime: Some(SetTime::Client(time)), uid: Some(7), ..*none };
        fs.setattr(caller, &file, &set, Some(ctime)).await.unwrap();
        let refused = fs.setattr(caller, &file, &set, Some(ctime)).await.unwrap_err();
        assert_eq!(refused.status, Status::NotSync);
        let now = fs.getattr(caller, &file).await.unwrap();
        assert_eq!((now.size, now.mtime, now.uid), (3, time, 7));
        assert_eq!(self.read(&file).await, data[..3]);
        self.exclusive(&mode).await;
    }

    /// Checks that a removed file is gone. In one of about sixty runs, nfs-ganesha answered SERVERFAULT here.
    /// The reason is unknown: no other call of ours was in flight. So repeat the call after SERVERFAULT.
    async fn is_gone(&self, file: &Handle) {
        let mut status = self.fs.getattr(&self.caller, file).await.unwrap_err().status;
        if status == Status::ServerFault {
            eprintln!("SERVERFAULT of a file that was removed");
            status = self.fs.getattr(&self.caller, file).await.unwrap_err().status;
        }
        assert_eq!(status, Status::Stale);
    }

    async fn exclusive(&self, mode: &SetAttributes) {
        let Bench { fs, root, caller, .. } = self;
        let how = CreateHow::Exclusive(*b"exclusiv");
        let exclusive = fs.create(caller, root, &name(b"exclusive"), how, mode).await.unwrap();
        assert_eq!(exclusive.node.attributes.unwrap().mode, 0o640);
        let other = CreateHow::Exclusive(*b"another1");
        let refused = fs.create(caller, root, &name(b"exclusive"), other, mode).await.unwrap_err();
        assert_eq!(refused.status, Status::Exist);
        let again = fs.create(caller, root, &name(b"exclusive"), how, mode).await.unwrap();
        assert_eq!(again.node.handle, exclusive.node.handle, "the same creation");
        fs.remove(caller, root, &name(b"exclusive")).await.unwrap();
        self.is_gone(&exclusive.node.handle).await;
        assert_eq!(
            fs.lookup(caller, root, &name(b"exclusive"), vfs::Want::None).await.unwrap_err().status,
            Status::NoEnt
        );
    }

    /// Tests names of all kinds, and a symbolic link to this target.
    pub async fn names(&self, target: &[u8]) {
        let Bench { fs, root, caller, none } = self;
        let directory = fs.mkdir(caller, root, &name(b"d"), none, vfs::Want::None).await.unwrap().node.handle;
        let file =
            fs.create(caller, root, &name(b"f"), CreateHow::Unchecked, none).await.unwrap().node.handle;
        let linked = fs.link(caller, &file, &directory, &name(b"hard")).await.unwrap();
        assert_eq!((linked.node.handle, linked.node.attributes.unwrap().nlink), (file, 2));
        let renamed = fs.rename(caller, root, &name(b"f"), &directory, &name(b"g")).await.unwrap();
        assert!(renamed.from.after.is_some() && renamed.to.after.is_some());
        assert_eq!(
            fs.lookup(caller, &directory, &name(b"g"), vfs::Want::None).await.unwrap().node.handle,
            file
        );
        assert_eq!(fs.parent(caller, &directory).await.unwrap().node.handle, *root);

        let symlink = fs.symlink(caller, &directory, &name(b"s"), target, none).await.unwrap().node;
        assert_eq!(symlink.attributes.unwrap().file_type, FileType::Symlink);
        assert_eq!(fs.readlink(caller, &symlink.handle).await.unwrap().0, target);
        let (fifo, device) = (FileType::Fifo, Device::default());
        let fifo = fs.mknod(caller, &directory, &name(b"p"), fifo, device, none).await.unwrap().node;
        assert_eq!(fifo.attributes.unwrap().file_type, FileType::Fifo);
        let device = Device { major: 1, minor: 3 };
        let null =
            fs.mknod(caller, &directory, &name(b"n"), FileType::Character, device, none).await.unwrap().node;
        assert_eq!(null.attributes.unwrap().rdev, device);

        assert_eq!(fs.rmdir(caller, root, &name(b"d")).await.unwrap_err().status, Status::NotEmpty);
        for entry in self.list(&directory, 4096, false).await {
            fs.remove(caller, &directory, &entry.name).await.unwrap();
        }
        fs.rmdir(caller, root, &name(b"d")).await.unwrap();
    }

    /// Lists a directory of this many files, in parts and at once.
    pub async fn directories(&self, files: usize) {
        let Bench { fs, root, caller, none } = self;
        let directory =
            fs.mkdir(caller, root, &name(b"many"), none, vfs::Want::None).await.unwrap().node.handle;
        let names: Vec<String> =
            (0..files).map(|n| format!("a file with a rather long name, number {n:04}")).collect();
        for file in &names {
            fs.create(caller, &directory, &name(file.as_bytes()), CreateHow::Unchecked, none).await.unwrap();
        }
        for (bytes, plus) in [(4096, true), (1 << 20, true), (4096, false), (1 << 20, false)] {
            let entries = self.list(&directory, bytes, plus).await;
            let mut listed: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
            listed.sort();
            assert_eq!(listed.len(), names.len());
            assert!(listed == names);
            assert!(entries.iter().all(|entry| entry.cookie >= Entry::FIRST_COOKIE && entry.fileid > 0));
            if plus {
                let node = entries[7].node.unwrap();
                let looked = fs.lookup(caller, &directory, &entries[7].name, vfs::Want::None).await.unwrap();
                assert_eq!(node.handle, looked.node.handle);
                assert_eq!(node.attributes.unwrap().fileid, entries[7].fileid);
            }
        }
    }

    /// Tests access rights, and space and limits.
    pub async fn rights(&self) {
        let Bench { fs, root, caller, none } = self;
        let mode = SetAttributes { mode: Some(0o640), uid: Some(1000), gid: Some(2000), ..*none };
        let how = CreateHow::Unchecked;
        let file = fs.create(caller, root, &name(b"mine"), how, none).await.unwrap().node.handle;
        fs.setattr(caller, &file, &mode, None).await.unwrap();
        let asked = AccessMask::READ | AccessMask::MODIFY;
        for (asker, granted) in [
            (Caller::unix(1000, 1, &[]), asked),
            (Caller::unix(7, 1, &[5, 2000]), AccessMask::READ),
            (Caller::unix(7, 1, &[]), AccessMask::empty()),
        ] {
            assert_eq!(fs.access(&asker, &file, asked).await.unwrap().granted, granted);
        }
        let stranger = Caller::unix(7, 1, &[]);
        let refused = fs.read(&stranger, &file, StateidBasis::Anonymous, 0, 10).await.unwrap_err();
        assert_eq!(refused.status, Status::Access);
        let limits = fs.limits(caller, root).await.unwrap();
        assert!(limits.read_max >= 65536 && limits.write_max >= 65536 && limits.name_max == 255);
        assert!(limits.hard_links && limits.symlinks);
        let space = fs.fsstat(caller, root).await.unwrap();
        assert!(space.total_bytes >= space.free_bytes && space.total_files > 0);
    }
}
