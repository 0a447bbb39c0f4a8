//! Keeps a guest's network alive.
//!
//! User-mode Linux gives its network device up for good after one failed system call on the tap device
//! (`in_error` in arch/um/drivers/vector_kern.c), and says nothing. It works again after the device was
//! closed and opened. It happens now and then under load, and looks like a server that hangs.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Time between two attempts to reach the host.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the host may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many failed attempts in a row mean that the device is dead.
const FAILURES_MAX: u32 = 3;
/// A port of the host where nothing listens: it refuses the connection, which is an answer.
const PORT: u16 = 9;

/// Opens the device again whenever the gateway no longer answers.
pub fn watch(device: &str, gateway: &str) -> io::Result<()> {
    let address = gateway.parse().map_err(io::Error::other)?;
    let host = SocketAddr::new(address, PORT);
    let mut failures = 0;
    loop {
        sleep(INTERVAL);
        failures = if answers(host) { 0 } else { failures + 1 };
        if failures >= FAILURES_MAX {
            println!("LAB-NETWORK {device} is dead and is opened again; {}", counters(device));
            reopen(device, gateway)?;
            failures = 0;
        }
    }
}

fn answers(host: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&host, PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// What tells a failed send (`tx_dropped`) from a failed receive.
fn counters(device: &str) -> String {
    let counter = |name: &str| {
        let read = fs::read_to_string(format!("/sys/class/net/{device}/statistics/{name}"));
        format!("{name} {}", read.as_deref().unwrap_or("?").trim())
    };
    ["tx_dropped", "tx_packets", "rx_dropped", "rx_packets"].map(counter).join(", ")
}

/// Taking a device down removes its routes, so the default route is set again.
fn reopen(device: &str, gateway: &str) -> io::Result<()> {
    for arguments in [
        &["link", "set", device, "down"][..],
        &["link", "set", device, "up"],
        &["route", "replace", "default", "via", gateway],
    ] {
        Command::new("ip").args(arguments).status()?;
    }
    Ok(())
}
