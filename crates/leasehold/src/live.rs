//! A list whose members come and go while others read it: the origins of a proxy, what clients hold there,
//! and its caches. A process that has the same parts from start to end has a fixed one.

use std::sync::Arc;

/// The list.
pub struct Live<T>(Arc<dyn Fn() -> Vec<T> + Send + Sync>);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Live<T> {
        Live(self.0.clone())
    }
}

impl<T> Live<T> {
    /// The list that `read` gives at each moment.
    pub fn of(read: impl Fn() -> Vec<T> + Send + Sync + 'static) -> Live<T> {
        Live(Arc::new(read))
    }

    /// A list that stays.
    pub fn fixed(list: Vec<T>) -> Live<T>
    where
        T: Clone + Send + Sync + 'static,
    {
        Live::of(move || list.clone())
    }

    /// Its members now.
    pub fn now(&self) -> Vec<T> {
        (self.0)()
    }
}
