//! LOOKUPs in flight: if many requests look up the same name at once, one of them asks the origin.
//!
//! If a LOOKUP of the name is in flight, a request waits for its reply, once. Then it looks whether the
//! remembered entry serves it, by the usual rules. It may not: the reply may not be stored, or the request
//! may need an answer from after its arrival. Then the request sends a LOOKUP itself, and has lost the rest
//! of one round trip.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vfs::{Handle, Name};

type Key = (Handle, Name);

/// The names with a LOOKUP in flight. There are no more of them than requests.
#[derive(Debug, Default)]
pub struct Singleflight(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// A LOOKUP in flight, until it is dropped.
#[must_use]
pub struct Asking<'a> {
    singleflight: &'a Singleflight,
    key: Key,
}

impl Singleflight {
    /// Registers a LOOKUP of the name. If one is in flight, waits for its end and returns None.
    pub async fn begin(&self, directory: &Handle, name: &Name) -> Option<Asking<'_>> {
        let key = (*directory, name.clone());
        let other = {
            let mut names = self.0.lock();
            let Some(other) = names.get(&key) else {
                // The semaphore has no permits. It is closed when the reply has come.
                names.insert(key.clone(), Arc::new(Semaphore::new(0)));
                return Some(Asking { singleflight: self, key });
            };
            other.clone()
        };
        let _ = other.acquire().await;
        None
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.singleflight.0.lock().remove(&self.key) {
            waiting.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_asks_and_the_others_wait_for_it_once() {
        let singleflight = Singleflight::default();
        let (directory, name) = (Handle::new(b"d").unwrap(), Name::new(b"n").unwrap());
        let first = singleflight.begin(&directory, &name).await.expect("nobody asks");
        let other = Name::new(b"m").unwrap();
        assert!(singleflight.begin(&directory, &other).await.is_some(), "another name");
        let mut waiting = std::pin::pin!(singleflight.begin(&directory, &name));
        assert!(is_pending(waiting.as_mut()).await, "it is asked for");
        drop(first);
        assert!(waiting.await.is_none());
        assert!(singleflight.begin(&directory, &name).await.is_some());
        assert!(singleflight.0.lock().is_empty());
    }

    async fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|context| {
            let future = future.take().expect("polled once");
            std::task::Poll::Ready(future.poll(context).is_pending())
        })
        .await
    }
}
