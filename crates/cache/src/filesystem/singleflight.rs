//! LOOKUPs that are under way: of many who walk through the same directory at once, one asks.
//!
//! Who wants a name that is being asked for waits for that answer, once, and looks whether what is remembered now will do:
//! it holds as long as it always would. Where it does not (the answer may not be kept, or must be asked after the request
//! came), he asks himself, and has lost the rest of one round trip.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vfs::{Handle, Name};

type Key = (Handle, Name);

/// The names that are being asked for. There are no more than requests.
#[derive(Debug, Default)]
pub struct Singleflight(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// A name is being asked for until this is dropped.
#[must_use]
pub struct Asking<'a> {
    singleflight: &'a Singleflight,
    key: Key,
}

impl Singleflight {
    /// Begins to ask for a name; or waits until who asks for it already is done, and gives nothing.
    pub async fn begin(&self, directory: &Handle, name: &Name) -> Option<Asking<'_>> {
        let key = (*directory, name.clone());
        let other = {
            let mut names = self.0.lock();
            let Some(other) = names.get(&key) else {
                // It has no permits, and is closed when the answer is there.
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
