//! The way to the layer above, over which [callbacks](crate::callbacks) go.

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use vfs::{Callback, Callbacks};

/// The largest number of callbacks queued for the layer above.
const CALLBACKS_MAX: usize = 1024;

/// The way to the layer above: callbacks, if that layer listens.
#[derive(Debug)]
pub struct Above {
    sender: mpsc::Sender<Callback>,
    stream: Mutex<Option<Callbacks>>,
}

impl Default for Above {
    fn default() -> Above {
        let (sender, stream) = mpsc::channel(CALLBACKS_MAX);
        Above { sender, stream: Mutex::new(Some(stream)) }
    }
}

impl Above {
    /// The stream of callbacks. Only the first caller gets it.
    pub fn take_callbacks(&self) -> Option<Callbacks> {
        self.stream.lock().take()
    }

    /// Whether the layer above listens.
    pub fn is_heard(&self) -> bool {
        self.stream.lock().is_none() && !self.sender.is_closed()
    }

    /// Waits until the layer above does not listen any more.
    pub async fn gone(&self) {
        self.sender.closed().await;
    }

    /// Sends a callback, and waits while the queue is full. It is lost if the layer above has gone.
    pub async fn send(&self, callback: Callback) {
        let _ = self.sender.send(callback).await;
    }

    /// Sends a callback. If the queue is full, the callback follows as soon as it is not.
    pub fn send_soon(&self, callback: Callback) {
        if let Err(TrySendError::Full(callback)) = self.sender.try_send(callback) {
            let sender = self.sender.clone();
            tokio::spawn(async move { sender.send(callback).await });
        }
    }
}
