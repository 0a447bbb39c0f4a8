//! Runs everything once against nfs-ganesha, if it is installed: a server that we did not write.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::{Nfs3, Origin as _, Url};
use protocol::nfs3::Procedure;
use vfs::{CreateHow, FileSystem, Name, SetAttributes, Status};

use crate::everything::Bench;

const CONFIGURATION: &str = r#"
NFS_CORE_PARAM {
  Protocols = 3, 4; Bind_addr = 127.0.0.1; NFS_Port = @PORT@; MNT_Port = @MOUNTPORT@; Rquota_Port = @RQUOTAPORT@;
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}
NFSv4 { Minor_Versions = 1, 2; Lease_Lifetime = 4; Grace_Period = 8; Delegations = true; RecoveryRoot = "@STATE@/recovery"; }
EXPORT_DEFAULTS { Access_Type = RW; Squash = No_Root_Squash; SecType = sys; }
EXPORT { Export_Id = 1; Path = "@STATE@/export"; Pseudo = /srv/export; Protocols = 3, 4; Delegations = RW; FSAL { Name = VFS; } }
"#;

/// Ganesha needs an rpcbind to register with. This one serves only Ganesha, in a separate network namespace.
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
    /// Kills it like `kill -9`.
    pub fn kill(&mut self) {
        // `unshare --kill-child` also kills the other processes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again with its state on disk.
    pub fn start_again(&mut self) {
        self.child = spawn(self.state.path());
        self.wait();
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
        // Use a disk: Ganesha's back end needs file handles.
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
    // Hold all listeners at once, so that the ports differ.
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

#[tokio::test]
async fn everything_once() {
    let Some(ganesha) = Ganesha::start() else { return };
    let fs = ganesha.mount("&nconnect=2").await;
    let root = fs.root_handle();
    let bench = Bench::new(fs, root);
    // The name is not UTF-8, which version 3 allows.
    bench.files(b"caf\xe9").await;
    bench.names(b"../f\xff").await;
    bench.directories(300).await;
    bench.rights().await;
    assert_eq!(bench.fs.nonsense_heard(), 0);
    let counts = bench.fs.counts();
    let never: Vec<_> = Procedure::ALL.iter().filter(|it| counts.calls(**it) == 0).collect();
    assert_eq!(never, [&Procedure::Null]);
}

/// Ganesha 4.3 creates the file of an exclusive create with one system call (`openat`) and stores the
/// verifier with the next (`utimensat`). If it is killed between the two, the file looks like that of another
/// client. Then it answers EXIST when the same request comes again. If it is killed before or after both, it
/// behaves correctly.
// Promise: exclusive-creations
#[tokio::test]
async fn ganesha_takes_the_file_of_an_exclusive_create_for_anothers_if_it_was_killed_before_it_kept_the_verifier()
 {
    let Some(mut ganesha) = Ganesha::start() else { return };
    let export = ganesha.state.path().join("export");
    let fs = ganesha.mount("").await;
    let (root, caller, set) = (fs.root_handle(), vfs::Caller::unix(0, 0, &[]), SetAttributes::default());
    let how = CreateHow::Exclusive(*b"verifier");
    let [complete, none, half] = [b"whole", b"never", b"half."].map(|name| Name::new(name).unwrap());
    let made = fs.create(&caller, &root, &complete, how, &set).await.unwrap();
    ganesha.kill();
    // The state that a kill between the two calls leaves.
    std::fs::write(export.join("half."), b"").unwrap();
    ganesha.start_again();
    let again = fs.create(&caller, &root, &complete, how, &set).await.unwrap();
    assert_eq!(again.node.handle, made.node.handle);
    fs.create(&caller, &root, &none, how, &set).await.unwrap();
    assert_eq!(fs.create(&caller, &root, &half, how, &set).await.unwrap_err().status, Status::Exist);
}
