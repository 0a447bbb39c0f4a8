//! A script that runs in a guest, and its result.

use crate::hand::{receive, send};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The most bytes of output kept; the rest is lost.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Exit code of a script that was killed at its timeout.
const TIMED_OUT: i32 = 124;
/// Exit code of a script whose guest died.
const GUEST_LOST: i32 = 255;

/// The output of a script (standard output and standard error together) and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The output; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// The exit code: 128 plus the signal if it was killed, 124 after a timeout, 255 if the guest died.
    pub code: i32,
}

impl Output {
    /// True if the script succeeded.
    pub fn ok(&self) -> bool {
        self.code == 0
    }

    /// The last 60 lines.
    pub fn tail(&self) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// A running script; dropping it kills the script.
#[derive(Debug)]
pub struct Task {
    connection: Option<TcpStream>,
    output: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<i32>,
}

impl Task {
    pub(crate) fn start(connection: io::Result<TcpStream>, script: &str) -> Task {
        let output = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = mpsc::channel();
        let started = connection.and_then(|mut connection| {
            send(&mut connection, &[b"run", script.as_bytes()])?;
            let reader = connection.try_clone()?;
            let output = Arc::clone(&output);
            thread::spawn(move || {
                let code = collect(reader, &output).unwrap_or_else(|error| {
                    append(&output, format!("lab: the guest is lost: {error}\n").as_bytes());
                    GUEST_LOST
                });
                let _ = end.send(code); // a dropped task has no receiver
            });
            Ok(connection)
        });
        if let Err(error) = &started {
            append(&output, format!("lab: the guest does not answer: {error}\n").as_bytes());
        }
        Task { connection: started.ok(), output, ended }
    }

    /// The output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for the end. Kills the script after `patience`.
    pub fn wait(self, patience: Duration) -> Output {
        let code = match self.ended.recv_timeout(patience) {
            Ok(code) => code,
            Err(RecvTimeoutError::Timeout) => {
                append(&self.output, format!("lab: killed after {patience:?}\n").as_bytes());
                TIMED_OUT
            }
            Err(RecvTimeoutError::Disconnected) => GUEST_LOST,
        };
        Output { text: self.output(), code }
    }

    /// Waits for the end without giving up the task; `None` if it still runs after `patience`.
    pub fn ended_within(&self, patience: Duration) -> Option<Output> {
        let code = self.ended.recv_timeout(patience).ok()?;
        Some(Output { text: self.output(), code })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn collect(mut from: TcpStream, output: &Mutex<Vec<u8>>) -> io::Result<i32> {
    while let Some(message) = receive(&mut from)? {
        match &message[..] {
            [kind, bytes] if kind == b"out" => append(output, bytes),
            [kind, code] if kind == b"exit" => {
                return String::from_utf8_lossy(code).parse().map_err(io::Error::other);
            }
            _ => return Err(io::Error::other("the agent talks nonsense")),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn append(output: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    let capacity = OUTPUT_BYTES_MAX.saturating_sub(output.len());
    output.extend_from_slice(&bytes[..bytes.len().min(capacity)]);
}
