//! nfs-ganesha on the host: an NFS server in user space. It exports a directory of the host, or is a proxy of
//! another server.
//!
//! It caches attributes and names of its export, so change files only through the server. Its VFS back end
//! grants no delegations.

use crate::origin::Origin;
use crate::process::{Process, Program};
use crate::session::{Lab, free_port};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CONFIGURATION: &str = include_str!("ganesha.conf.in");
/// How long a start may take.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A running nfs-ganesha.
#[derive(Debug)]
pub struct Ganesha {
    process: Process,
    origin: Origin,
    directory: PathBuf,
}

impl Ganesha {
    /// Exports a new empty directory as `/export` on free ports of the lab's address, and waits until the
    /// server answers.
    pub fn start(lab: &Lab) -> Ganesha {
        let directory = lab.subdirectory("ganesha-export");
        Ganesha::serve(lab, &directory)
    }

    /// Exports `directory`. Its file system must support file handles (ext4, xfs, btrfs). On tmpfs, once a
    /// name was removed from a directory, the server lists that directory endlessly.
    pub fn serve(lab: &Lab, directory: &Path) -> Ganesha {
        Ganesha::export(lab, directory, &directory.to_string_lossy(), "Name = VFS;")
    }

    /// Exports what `from` exports over version 4. It calls from a port below 1024. Its address at `from` is
    /// the address of `from` itself.
    pub fn proxy(lab: &Lab, from: &Origin) -> Ganesha {
        let back_end = format!(
            "Name = PROXY_V4; Srv_Addr = {}; NFS_Port = {}; Use_Privileged_Client_Port = true;",
            from.host, from.port
        );
        Ganesha::export(lab, &lab.subdirectory("ganesha-proxy"), &from.export, &back_end)
    }

    fn export(lab: &Lab, directory: &Path, path: &str, back_end: &str) -> Ganesha {
        let run = lab.ensure_rpcbind();
        let host = lab.address();
        let port = free_port(host);
        let origin = Origin { host, port, mountport: free_port(host), export: "/export".to_owned() };
        let state = lab.subdirectory(&format!("ganesha-{port}"));
        fs::create_dir_all(state.join("recovery"))
            .unwrap_or_else(|error| panic!("lab: ganesha's state: {error}"));
        let configuration = CONFIGURATION
            .replace("@ADDRESS@", &host.to_string())
            .replace("@PORT@", &port.to_string())
            .replace("@MOUNTPORT@", &origin.mountport.to_string())
            .replace("@RQUOTAPORT@", &free_port(host).to_string())
            .replace("@STATE@", &state.to_string_lossy())
            .replace("@FSAL@", back_end)
            .replace("@PATH@", path);
        let file = state.join("ganesha.conf");
        fs::write(&file, configuration).unwrap_or_else(|error| panic!("lab: {}: {error}", file.display()));
        let program = Program::new("unshare")
            .args(["--mount", "sh", "-c", "mount --bind \"$0\" /run; exec ganesha.nfsd \"$@\""])
            .arg(run)
            .arg("-F")
            .arg("-f")
            .arg(&file)
            .arg("-p")
            .arg(state.join("pid"))
            .arg("-L")
            .arg(state.join("ganesha.log"))
            .log_file(state.join("ganesha.log"));
        let ganesha = Ganesha { process: program.start(lab), origin, directory: directory.to_owned() };
        ganesha.wait_until_ready();
        ganesha
    }

    /// The address of its export.
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The exported directory. Do not change files there while the server runs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts it on the same ports after [`Ganesha::kill`], and waits until it answers.
    pub fn restart(&mut self) {
        self.process.restart();
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        for port in [self.origin.port, self.origin.mountport] {
            self.process.wait_for_connect(SocketAddr::new(self.origin.host, port), START_PATIENCE);
        }
    }
}
