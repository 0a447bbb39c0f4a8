//! Questions in flight: if many requests ask the same at once, one of them asks the origin.
//!
//! If a LOOKUP of the name is in flight, a request waits for its reply, once. Then it looks whether the
//! remembered entry serves it, by the usual rules. It may not: the reply may not be stored, or the request
//! may need an answer from after its arrival. Then the request sends a LOOKUP itself, and has lost the rest
//! of one round trip. Listings that are guessed are waited for in the same way.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The questions in flight. There are no more of them than requests.
#[derive(Debug)]
pub struct Singleflight<K: Eq + Hash + Clone>(Arc<Waiting<K>>);

/// What requests wait for. The semaphores have no permits. Each is closed when its reply has come.
type Waiting<K> = Mutex<HashMap<K, Arc<Semaphore>>>;

/// A question in flight, until it is dropped.
#[must_use]
pub struct Asking<K: Eq + Hash + Clone> {
    waiting: Arc<Waiting<K>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Default for Singleflight<K> {
    fn default() -> Singleflight<K> {
        Singleflight(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Singleflight<K> {
    /// Registers a question. If it is in flight, waits for its end and returns None.
    pub async fn begin(&self, key: K) -> Option<Asking<K>> {
        match self.register(key) {
            Ok(asking) => Some(asking),
            Err(other) => {
                let _ = other.acquire().await;
                None
            }
        }
    }

    /// Registers a question. `None` if it is in flight.
    pub fn try_begin(&self, key: K) -> Option<Asking<K>> {
        self.register(key).ok()
    }

    fn register(&self, key: K) -> Result<Asking<K>, Arc<Semaphore>> {
        match self.0.lock().entry(key.clone()) {
            Entry::Occupied(other) => Err(other.get().clone()),
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(Semaphore::new(0)));
                Ok(Asking { waiting: self.0.clone(), key })
            }
        }
    }

    /// If the question is in flight, waits for its end. False if it was not.
    pub async fn wait(&self, key: &K) -> bool {
        let Some(other) = self.0.lock().get(key).cloned() else { return false };
        let _ = other.acquire().await;
        true
    }
}

impl<K: Eq + Hash + Clone> Drop for Asking<K> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.lock().remove(&self.key) {
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
        let first = singleflight.begin("n").await.expect("nobody asks");
        assert!(singleflight.begin("m").await.is_some(), "another name");
        assert!(!singleflight.wait(&"m").await);
        let mut waiting = std::pin::pin!(singleflight.begin("n"));
        let mut watching = std::pin::pin!(singleflight.wait(&"n"));
        assert!(is_pending(waiting.as_mut()).await && is_pending(watching.as_mut()).await, "it is asked for");
        assert!(singleflight.try_begin("n").is_none());
        drop(first);
        assert!(waiting.await.is_none() && watching.await);
        assert!(singleflight.begin("n").await.is_some());
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
