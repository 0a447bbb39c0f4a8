//! The admin socket: whoever may enter the state directory may ask a running Leasehold what it does.
//!
//! One connection, one answer: the state as JSON. There is nothing to say to it yet.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::Failure;

/// An answer is at most so long.
const ANSWER_MAX_BYTES: u64 = 16 << 20;

/// Answers on the socket until it is dropped.
#[derive(Debug)]
pub struct Admin {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Admin {
    /// Listens in `directory`, of which we hold the lock.
    pub fn start(directory: &Path, status: impl Fn() -> Value + Send + 'static) -> Result<Admin, Failure> {
        let path = socket(directory);
        // Left by a process that was killed.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| {
            let path = path.display();
            Failure(format!(
                "cannot make the admin socket {path}: {error}; is the path longer than 100 bytes?"
            ))
        })?;
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut answer = status().to_string();
                answer.push('\n');
                // Whoever asks and does not listen loses the answer.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Ok(Admin { task, path })
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("admin.sock")
}

/// What the Leasehold that runs on `directory` says of itself.
pub async fn ask(directory: &Path) -> Result<Value, Failure> {
    let path = socket(directory);
    let mut stream = UnixStream::connect(&path).await.map_err(|error| {
        let path = path.display();
        Failure(format!("nothing answers at {path}: {error}; name the cache directory of a running proxy, or the state directory of a serve"))
    })?;
    let mut answer = String::new();
    let read = (&mut stream).take(ANSWER_MAX_BYTES).read_to_string(&mut answer).await;
    read.map_err(|error| Failure(format!("the answer broke off: {error}; ask again")))?;
    serde_json::from_str(&answer).map_err(|error| Failure(format!("the answer is not JSON: {error}")))
}
