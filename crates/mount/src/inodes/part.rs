//! A part of a node that most nodes lack. It takes memory only once it is used.

use std::ops::{Deref, DerefMut};

/// The value of a part that is not there.
pub trait Absent: 'static {
    /// It.
    const ABSENT: &'static Self;
}

/// A part that is made on its first change. Until then it reads as [`Absent::ABSENT`].
#[derive(Clone, Debug)]
pub struct Part<T>(Option<Box<T>>);

impl<T> Default for Part<T> {
    fn default() -> Part<T> {
        Part(None)
    }
}

impl<T> Part<T> {
    /// The part, if it was ever used. A change that only removes something needs no part.
    pub fn used(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Absent> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::ABSENT)
    }
}

impl<T: Absent + Default> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
