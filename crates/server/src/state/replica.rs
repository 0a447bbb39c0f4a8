//! The durable record of clients, and a copy of it in a place that other machines can read.
//!
//! A server that is taken over by another machine begins there with the copy: so clients may reclaim as after
//! a restart. An answer that gives a client state waits until the copy has the client.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;

use super::records::Records;

/// The place of the copy.
pub trait Replica: Debug + Send + Sync {
    /// Replaces the copy: the contents of the file `nfs4-clients` of a state directory. Returns when no
    /// failure of this machine can lose it.
    ///
    /// # Errors
    /// If the place cannot be reached, or if this server is not the one any more whose copy it is.
    fn store(&self, record: Vec<u8>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>;
}

/// The record, and its copy if there is one.
#[derive(Debug)]
pub(super) struct Replicated {
    records: Arc<Mutex<Records>>,
    replica: Option<Arc<dyn Replica>>,
    /// The version of the record that the copy has. One store at a time, so that none overtakes another.
    stored: tokio::sync::Mutex<Option<u64>>,
}

impl Replicated {
    pub(super) fn new(records: Records, replica: Option<Arc<dyn Replica>>) -> Replicated {
        let records = Arc::new(Mutex::new(records));
        Replicated { records, replica, stored: tokio::sync::Mutex::new(None) }
    }

    /// Changes the record on a blocking thread, and then the copy.
    pub(super) async fn write(
        &self,
        job: impl FnOnce(&mut Records) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let records = self.records.clone();
        let change = move || {
            let mut records = records.lock();
            job(&mut records).map(|()| records.version())
        };
        let version = tokio::task::spawn_blocking(change).await.map_err(io::Error::other)??;
        self.replicate(version).await
    }

    /// Stores this version, or a later one.
    async fn replicate(&self, version: u64) -> io::Result<()> {
        let Some(replica) = &self.replica else { return Ok(()) };
        let mut stored = self.stored.lock().await;
        if stored.is_some_and(|stored| stored >= version) {
            // Another call has stored this change with its own.
            return Ok(());
        }
        let (version, record) = {
            let records = self.records.lock();
            (records.version(), records.contents())
        };
        replica.store(record).await?;
        *stored = Some(version);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::clients::{ClientName, Generation};
    use super::super::records::Before;
    use super::*;
    use bytes::Bytes;
    use vfs::HolderId;

    #[derive(Debug, Default)]
    struct Copy {
        record: Mutex<Vec<u8>>,
        stores: Mutex<usize>,
        is_away: AtomicBool,
    }

    impl Replica for Copy {
        fn store(&self, record: Vec<u8>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if self.is_away.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                *self.record.lock() = record;
                *self.stores.lock() += 1;
                Ok(())
            })
        }
    }

    fn name(number: u8) -> ClientName {
        ClientName { generation: Generation::Sessions, ownerid: Bytes::from(vec![number; 8]) }
    }

    fn client(number: u8) -> Before {
        Before { holder: HolderId(u64::from(number)), principal: None }
    }

    #[tokio::test]
    async fn another_machine_begins_with_the_copy() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let copy = Arc::new(Copy::default());
        let records = Records::open(here.path(), Duration::from_secs(90)).unwrap();
        let (epoch, server) = (records.epoch(), records.server());
        let replicated = Replicated::new(records, Some(copy.clone()));
        // Many calls at a time need few stores.
        let adding = (1..=20).map(|number| {
            let name = name(number);
            replicated.write(move |records| records.add(&name, client(number)))
        });
        for added in futures_util::future::join_all(adding).await {
            added.unwrap();
        }
        assert!(*copy.stores.lock() < 10, "{} stores", copy.stores.lock());

        copy.is_away.store(true, Ordering::Relaxed);
        let late = name(21);
        replicated.write(move |records| records.add(&late, client(21))).await.unwrap_err();
        copy.is_away.store(false, Ordering::Relaxed);
        let again = name(21);
        replicated.write(move |records| records.add(&again, client(21))).await.unwrap();

        std::fs::write(there.path().join("nfs4-clients"), &*copy.record.lock()).unwrap();
        let taken_over = Records::open(there.path(), Duration::from_secs(90)).unwrap();
        assert_eq!(taken_over.clients().len(), 21);
        assert_eq!((taken_over.epoch(), taken_over.server()), (epoch + 1, server));
    }
}
