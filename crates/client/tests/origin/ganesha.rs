//! Everything once against nfs-ganesha, if it is installed: a server that we did not write.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Nfs3, Url};
use protocol::nfs3::Procedure;
use vfs::{
    AccessMask, By, Caller, CreateHow, Device, Entry, FileSystem, FileType, Handle, ReadDir, SetAttributes,
    SetTime, Stability, Status, Timestamp,
};

use crate::scripted::name;

const CONFIGURATION: &str = r#"
NFS_CORE_PARAM {
  Protocols = 3, 4; Bind_addr = 127.0.0.1; NFS_Port = @PORT@; MNT_Port = @MOUNTPORT@; Rquota_Port = @RQUOTAPORT@;
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}
NFSv4 { Minor_Versions = 1, 2; Lease_Lifetime = 4; Grace_Period = 8; Delegations = true; RecoveryRoot = "@STATE@/recovery"; }
EXPORT_DEFAULTS { Access_Type = RW; Squash = No_Root_Squash; SecType = sys; }
EXPORT { Export_Id = 1; Path = "@STATE@/export"; Pseudo = /srv/export; Protocols = 3, 4; Delegations = RW; FSAL { Name = VFS; } }
"#;

/// Ganesha wants an rpcbind to register with; this one is its alone, and out of everybody's way.
const START: &str = r#"
mount -t tmpfs tmpfs /run && mkdir /run/rpcbind /run/ganesha || exit 1
unshare --net sh -c "ip link set lo up; exec rpcbind -f" &
until test -S /run/rpcbind.sock; do sleep 0.05; done
exec ganesha.nfsd -F -f "$0/ganesha.conf" -p "$0/pid" -L "$0/log"
"#;

pub struct Ganesha {
    child: Child,
    state: tempfile::TempDir,
    pub port: u16,
    mountport: u16,
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ganesha {
    /// As `kill -9` does.
    pub fn kill(&mut self) {
        // `unshare --kill-child` takes the others along.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, with all that it has on disk.
    pub fn start_again(&mut self) {
        self.child = spawn(self.state.path());
        self.wait();
    }

    /// What it exports.
    pub fn export(&self) -> std::path::PathBuf {
        self.state.path().join("export")
    }

    pub fn start() -> Option<Ganesha> {
        if !Path::new("/usr/bin/ganesha.nfsd").exists() || !Path::new("/usr/sbin/rpcbind").exists() {
            eprintln!("skipped: apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind");
            return None;
        }
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("skipped: only root can start nfs-ganesha");
            return None;
        }
        let [port, mountport, rquotaport] = free_ports();
        // On a disk: its back end needs file handles.
        let state = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::create_dir(state.path().join("export")).unwrap();
        let configuration = CONFIGURATION
            .replace("@PORT@", &port.to_string())
            .replace("@MOUNTPORT@", &mountport.to_string())
            .replace("@RQUOTAPORT@", &rquotaport.to_string())
            .replace("@STATE@", &state.path().to_string_lossy());
        std::fs::write(state.path().join("ganesha.conf"), configuration).unwrap();
        std::fs::create_dir(state.path().join("recovery")).unwrap();
        let child = spawn(state.path());
        let ganesha = Ganesha { child, state, port, mountport };
        ganesha.wait();
        Some(ganesha)
    }

    fn wait(&self) {
        let started = Instant::now();
        for port in [self.port, self.mountport] {
            while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
                let log = std::fs::read_to_string(self.state.path().join("log")).unwrap_or_default();
                assert!(started.elapsed() < Duration::from_secs(30), "ganesha does not answer:\n{log}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    async fn mount(&self, options: &str) -> Nfs3 {
        let Ganesha { port, mountport, state, .. } = self;
        let export = state.path().join("export");
        let url = format!("nfs://127.0.0.1:{port}{}?mountport={mountport}{options}", export.display());
        Nfs3::connect(&Url::parse(&url).unwrap()).await.unwrap()
    }
}

fn spawn(state: &Path) -> Child {
    Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", START])
        .arg(state)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn free_ports() -> [u16; 3] {
    // Held together, so that they differ.
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// What the parts of the test share.
struct Bench {
    fs: Nfs3,
    root: Handle,
    caller: Caller,
    none: SetAttributes,
}

impl Bench {
    async fn write(&self, file: &Handle, offset: u64, data: Bytes) {
        let mut sent = 0;
        while sent < data.len() {
            let (at, rest) = (offset + sent as u64, data.slice(sent..));
            let written = self
                .fs
                .write(&self.caller, file, By::Anonymous, at, rest, Stability::Unstable)
                .await
                .unwrap();
            assert!(written.count > 0);
            sent += written.count as usize;
        }
        self.fs.commit(&self.caller, file, 0, 0).await.unwrap();
    }

    async fn read(&self, file: &Handle) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let read =
                self.fs.read(&self.caller, file, By::Anonymous, all.len() as u64, u32::MAX).await.unwrap();
            all.extend_from_slice(&read.data.to_bytes().unwrap());
            if read.eof {
                return all;
            }
        }
    }

    async fn list(&self, directory: &Handle, bytes: u32, plus: bool) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut part = ReadDir { cookie: 0, verifier: [0; 8], bytes, plus };
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
}

#[tokio::test]
async fn everything_once() {
    let Some(ganesha) = Ganesha::start() else { return };
    let fs = ganesha.mount("&nconnect=2").await;
    let bench =
        Bench { root: fs.root_handle(), fs, caller: Caller::unix(0, 0, &[]), none: SetAttributes::default() };
    files(&bench).await;
    names(&bench).await;
    directories(&bench).await;
    rights(&bench).await;
    assert_eq!(bench.fs.nonsense_heard(), 0);
    let counts = bench.fs.counts();
    let never: Vec<_> = Procedure::ALL.iter().filter(|it| counts.calls(**it) == 0).collect();
    assert_eq!(never, [&Procedure::Null]);
}

async fn files(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let mode = SetAttributes { mode: Some(0o640), ..*none };
    let made = fs.create(caller, root, &name(b"caf\xe9"), CreateHow::Guarded, &mode).await.unwrap();
    let file = made.node.handle;
    assert_eq!(made.node.attributes.unwrap().mode, 0o640);
    assert!(made.directory.after.is_some());
    let again = fs.create(caller, root, &name(b"caf\xe9"), CreateHow::Guarded, &mode).await.unwrap_err();
    assert_eq!(again.status, Status::Exist);

    let data: Bytes = (0..3_000_001u32).map(|at| (at * 7 / 3) as u8).collect();
    bench.write(&file, 0, data.clone()).await;
    assert!(bench.read(&file).await == data);
    let past = fs.read(caller, &file, By::Anonymous, 1 << 32, 10).await.unwrap();
    assert!(past.eof && past.data.is_empty());

    let ctime = fs.getattr(caller, &file).await.unwrap().ctime;
    let time = Timestamp::new(1_000_000_000, 5);
    let set = SetAttributes { size: Some(3), mtime: Some(SetTime::Client(time)), ..*none };
    fs.setattr(caller, &file, &set, Some(ctime)).await.unwrap();
    let refused = fs.setattr(caller, &file, &set, Some(ctime)).await.unwrap_err();
    assert_eq!(refused.status, Status::NotSync);
    let now = fs.getattr(caller, &file).await.unwrap();
    assert_eq!((now.size, now.mtime), (3, time));
    assert_eq!(bench.read(&file).await, data[..3]);

    let how = CreateHow::Exclusive(*b"exclusiv");
    let exclusive = fs.create(caller, root, &name(b"exclusive"), how, &mode).await.unwrap();
    assert_eq!(exclusive.node.attributes.unwrap().mode, 0o640);
    let other = CreateHow::Exclusive(*b"another1");
    let refused = fs.create(caller, root, &name(b"exclusive"), other, &mode).await.unwrap_err();
    assert_eq!(refused.status, Status::Exist);

    fs.remove(caller, root, &name(b"exclusive")).await.unwrap();
    assert_eq!(fs.getattr(caller, &exclusive.node.handle).await.unwrap_err().status, Status::Stale);
    assert_eq!(fs.lookup(caller, root, &name(b"exclusive")).await.unwrap_err().status, Status::NoEnt);
}

async fn names(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let directory = fs.mkdir(caller, root, &name(b"d"), none).await.unwrap().node.handle;
    let file = fs.create(caller, root, &name(b"f"), CreateHow::Unchecked, none).await.unwrap().node.handle;
    let linked = fs.link(caller, &file, &directory, &name(b"hard")).await.unwrap();
    assert_eq!((linked.node.handle, linked.node.attributes.unwrap().nlink), (file, 2));
    let renamed = fs.rename(caller, root, &name(b"f"), &directory, &name(b"g")).await.unwrap();
    assert!(renamed.from.after.is_some() && renamed.to.after.is_some());
    assert_eq!(fs.lookup(caller, &directory, &name(b"g")).await.unwrap().node.handle, file);
    assert_eq!(fs.parent(caller, &directory).await.unwrap().node.handle, *root);

    let symlink = fs.symlink(caller, &directory, &name(b"s"), b"../f\xff", none).await.unwrap().node;
    assert_eq!(symlink.attributes.unwrap().file_type, FileType::Symlink);
    assert_eq!(fs.readlink(caller, &symlink.handle).await.unwrap().0, &b"../f\xff"[..]);
    let (fifo, device) = (FileType::Fifo, Device::default());
    let fifo = fs.mknod(caller, &directory, &name(b"p"), fifo, device, none).await.unwrap().node;
    assert_eq!(fifo.attributes.unwrap().file_type, FileType::Fifo);
    let device = Device { major: 1, minor: 3 };
    let null =
        fs.mknod(caller, &directory, &name(b"n"), FileType::Character, device, none).await.unwrap().node;
    assert_eq!(null.attributes.unwrap().rdev, device);

    assert_eq!(fs.rmdir(caller, root, &name(b"d")).await.unwrap_err().status, Status::NotEmpty);
    for entry in bench.list(&directory, 4096, false).await {
        fs.remove(caller, &directory, &entry.name).await.unwrap();
    }
    fs.rmdir(caller, root, &name(b"d")).await.unwrap();
}

async fn directories(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let directory = fs.mkdir(caller, root, &name(b"many"), none).await.unwrap().node.handle;
    let mut names: Vec<String> =
        (0..300).map(|n| format!("a file with a rather long name, number {n:03}")).collect();
    for file in &names {
        fs.create(caller, &directory, &name(file.as_bytes()), CreateHow::Unchecked, none).await.unwrap();
    }
    names.sort();
    for (bytes, plus) in [(4096, true), (1 << 20, true), (4096, false), (1 << 20, false)] {
        let entries = bench.list(&directory, bytes, plus).await;
        let mut listed: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
        listed.sort();
        assert_eq!(listed, names);
        assert!(entries.iter().all(|entry| entry.cookie >= Entry::FIRST_COOKIE));
        if plus {
            let node = entries[7].node.unwrap();
            let looked = fs.lookup(caller, &directory, &entries[7].name).await.unwrap();
            assert_eq!(node.handle, looked.node.handle);
            assert_eq!(node.attributes.unwrap().fileid, entries[7].fileid);
        }
    }
}

async fn rights(bench: &Bench) {
    let Bench { fs, root, caller, none } = bench;
    let mode = SetAttributes { mode: Some(0o640), uid: Some(1000), gid: Some(2000), ..*none };
    let file = fs.create(caller, root, &name(b"mine"), CreateHow::Unchecked, none).await.unwrap().node.handle;
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
    let refused = fs.read(&stranger, &file, By::Anonymous, 0, 10).await.unwrap_err();
    assert_eq!(refused.status, Status::Access);
    let limits = fs.limits(caller, root).await.unwrap();
    assert!(limits.read_max >= 65536 && limits.write_max >= 65536 && limits.name_max == 255);
    assert!(limits.hard_links && limits.symlinks);
    let space = fs.fsstat(caller, root).await.unwrap();
    assert!(space.total_bytes >= space.free_bytes && space.total_files > 0);
}
