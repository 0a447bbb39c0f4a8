//! Writes: cached until they have to be sent.

use bytes::Bytes;
use tokio::task::JoinSet;
use vfs::{Handle, Result, Stability, Status, Wcc, Written};

use super::files::Open;
use super::memory::Client;

/// The most unsent bytes of a file.
const DIRTY_MAX_BYTES: usize = 8 << 20;
/// The most WRITEs in flight.
const AT_ONCE: usize = 8;

impl Client {
    pub(super) async fn write(&self, open: &Open, data: &[u8], offset: u64) -> Result<()> {
        let unsent = {
            let mut memory = self.memory.lock();
            let dirty = memory.dirty.entry(open.handle).or_default();
            dirty.write(offset, data);
            dirty.bytes()
        };
        if self.habits.synchronous || unsent > DIRTY_MAX_BYTES { self.flush(open).await } else { Ok(()) }
    }

    /// Sends all unsent writes of a file, and makes them durable.
    pub(super) async fn flush(&self, open: &Open) -> Result<()> {
        let Some(dirty) = self.memory.lock().dirty.remove(&open.handle) else { return Ok(()) };
        let parts = dirty.into_parts(self.habits.transfer_bytes as usize);
        let wcc = match &parts[..] {
            [] => return Ok(()),
            [(offset, data)] => {
                let written = write_all(self, open, *offset, data.clone(), Stability::FileSync).await?;
                written.wcc
            }
            _ => self.write_and_commit(open, &parts).await?,
        };
        let mut memory = self.memory.lock();
        memory.learn_own(&open.handle, &wcc);
        if let Some(after) = wcc.after {
            for (offset, data) in &parts {
                memory.pages.overwrite(&open.handle, after.change, *offset, data, after.size);
            }
        }
        Ok(())
    }

    async fn write_and_commit(&self, open: &Open, parts: &[(u64, Bytes)]) -> Result<Wcc> {
        let mut writing = JoinSet::new();
        let mut verifiers = Vec::new();
        for (offset, data) in parts {
            if writing.len() >= AT_ONCE {
                verifiers.extend(finished(writing.join_next().await)?);
            }
            let (fs, caller, handle, by) = (self.fs.clone(), self.caller.clone(), open.handle, open.by());
            let (offset, data) = (*offset, data.clone());
            writing.spawn(async move {
                write_to(&*fs, &caller, &handle, by, offset, data, Stability::Unstable).await
            });
        }
        while let Some(joined) = writing.join_next().await {
            verifiers.extend(finished(Some(joined))?);
        }
        let commit = self.fs.commit(&self.caller, &open.handle, 0, 0).await?;
        if verifiers.iter().any(|verifier| *verifier != commit.verifier) {
            // The server has restarted and may have lost the unstable writes. In a benchmark this is an
            // error.
            return Err(Status::Io.into());
        }
        Ok(commit.wcc)
    }
}

type Joined = std::result::Result<Result<Written>, tokio::task::JoinError>;

/// The verifier of a WRITE whose reply was UNSTABLE.
fn finished(joined: Option<Joined>) -> Result<Option<vfs::Verifier>> {
    let Some(joined) = joined else { return Ok(None) };
    let written = joined.map_err(|_| Status::ServerFault)??;
    Ok((written.stability == Stability::Unstable).then_some(written.verifier))
}

async fn write_all(
    client: &Client,
    open: &Open,
    offset: u64,
    data: Bytes,
    stability: Stability,
) -> Result<Written> {
    write_to(&*client.fs, &client.caller, &open.handle, open.by(), offset, data, stability).await
}

async fn write_to(
    fs: &dyn vfs::FileSystem,
    caller: &vfs::Caller,
    handle: &Handle,
    by: vfs::StateidBasis,
    mut offset: u64,
    mut data: Bytes,
    stability: Stability,
) -> Result<Written> {
    loop {
        let written = fs.write(caller, handle, by, offset, data.clone(), stability).await?;
        let count = (written.count as usize).min(data.len());
        if count == data.len() {
            return Ok(written);
        }
        if count == 0 {
            return Err(Status::Io.into());
        }
        offset += count as u64;
        data = data.slice(count..);
    }
}
