//! The clients that call most, and the files that are read and written most.
//!
//! A client is an address. The calls of a file are its READs and WRITEs. The numbers of keys are bounded: see
//! [`Tally`].

use std::net::IpAddr;

use vfs::{Handle, Tally, Used};

use crate::exports::ExportId;

/// See the module.
#[derive(Debug, Default)]
pub struct Usage {
    clients: Tally<IpAddr>,
    waits: Tally<IpAddr>,
    files: Tally<(ExportId, Handle)>,
}

impl Usage {
    /// The clients that called most, with what they used.
    pub fn clients(&self) -> Vec<(IpAddr, Used)> {
        self.clients.counts()
    }

    /// The clients whose calls waited in line most, with the number of these calls.
    pub fn waits(&self) -> Vec<(IpAddr, Used)> {
        self.waits.counts()
    }

    /// The files that were read and written most.
    pub fn files(&self) -> Vec<((ExportId, Handle), Used)> {
        self.files.counts()
    }

    /// A client has called.
    pub(crate) fn call(&self, client: IpAddr) {
        self.clients.add(&client.to_canonical(), Used::CALL);
    }

    /// A call of a client has to wait in line.
    pub(crate) fn wait(&self, client: IpAddr) {
        self.waits.add(&client.to_canonical(), Used::CALL);
    }

    /// A client, if it is known, has read or written so much of a file.
    pub(crate) fn file(&self, file: (ExportId, Handle), client: Option<IpAddr>, used: Used) {
        if let Some(client) = &client {
            self.clients.add(client, used);
        }
        self.files.add(&file, used.with_call());
    }
}
