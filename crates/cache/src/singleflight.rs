//! Questions in flight: if many requests ask the same at once, one of them asks the origin.
//!
//! If a LOOKUP of the name is in flight, a request waits for its reply, once. Then it looks whether the
//! remembered entry serves it, by the usual rules. It may not: the reply may not be stored, or the request
//! may need an answer from after its arrival. Then the request sends a LOOKUP itself, and has lost the rest
//! of one round trip. Listings that are guessed are waited for in the same way.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The questions in flight. There are no more of them than requests.
#[derive(Debug)]
pub struct Singleflight<K: Eq + Hash + Clone>(Mutex<HashMap<K, Arc<Semaphore>>>);

/// A question in flight, until it is dropped.
#[must_use]
pub struct Asking<'a, K: Eq + Hash + Clone> {
    singleflight: &'a Singleflight<K>,
    key: K,
}

impl<K: Eq + Hash + Clone> Default for Singleflight<K> {
    fn default() -> Singleflight<K> {
        Singleflight(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Singleflight<K> {
    /// Registers a question. If it is in flight, waits for its end and returns None.
    pub async fn begin(&self, key: K) -> Option<Asking<'_, K>> {
        let other = {
            let mut keys = self.0.lock();
            let Some(other) = keys.get(&key) else {
                // The semaphore has no permits. It is closed when the reply has come.
                keys.insert(key.clone(), Arc::new(Semaphore::new(0)));
                return Some(Asking { singleflight: self, key });
            };
            other.clone()
        };
        let _ = other.acquire().await;
        None
    }

    /// If the question is in flight, waits for its end. False if it was not.
    pub async fn wait(&self, key: &K) -> bool {
        let Some(other) = self.0.lock().get(key).cloned() else { return false };
        let _ = other.acquire().await;
        true
    }
}

impl<K: Eq + Hash + Clone> Drop for Asking<'_, K> {
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
        let first = singleflight.begin("n").await.expect("nobody asks");
        assert!(singleflight.begin("m").await.is_some(), "another name");
        assert!(!singleflight.wait(&"m").await);
        let mut waiting = std::pin::pin!(singleflight.begin("n"));
        let mut watching = std::pin::pin!(singleflight.wait(&"n"));
        assert!(is_pending(waiting.as_mut()).await && is_pending(watching.as_mut()).await, "it is asked for");
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
