//! The groups of objects, as the origin has said them.

use std::collections::HashMap;

use tokio::time::Instant;
use vfs::Handle;

/// The most objects that are remembered.
const OBJECTS_MAX: usize = 16_384;

#[derive(Clone, Copy, Debug)]
struct Group {
    id: u32,
    asked: Instant,
}

/// See the module. Two generations: when the younger one is full, the older one is forgotten. So an object
/// that is used stays.
#[derive(Debug, Default)]
pub(super) struct Seen {
    young: HashMap<Handle, Group>,
    old: HashMap<Handle, Group>,
}

impl Seen {
    /// The group of an object, if the origin was asked at `since` or later.
    pub(super) fn group(&self, object: &Handle, since: Option<Instant>) -> Option<u32> {
        let group = self.young.get(object).or_else(|| self.old.get(object))?;
        since.is_none_or(|since| group.asked >= since).then_some(group.id)
    }

    /// Remembers an answer to a question of that time, unless a later one is known.
    pub(super) fn learn(&mut self, object: Handle, id: u32, asked: Instant) {
        let known = self.young.get(&object).or_else(|| self.old.get(&object));
        if known.is_some_and(|known| known.asked > asked) {
            return;
        }
        if self.young.len() >= OBJECTS_MAX / 2 && !self.young.contains_key(&object) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(object, Group { id, asked });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn object(number: u32) -> Handle {
        Handle::new(&number.to_be_bytes()).unwrap()
    }

    #[test]
    fn later_answers_count_and_old_ones_end() {
        let (mut seen, at) = (Seen::default(), Instant::now());
        seen.learn(object(1), 10, at + Duration::from_secs(1));
        seen.learn(object(1), 11, at);
        assert_eq!(seen.group(&object(1), Some(at)), Some(10));
        assert_eq!(seen.group(&object(1), None), Some(10));
        assert_eq!(seen.group(&object(1), Some(at + Duration::from_secs(2))), None);
        assert_eq!(seen.group(&object(2), None), None);
    }

    #[test]
    fn the_number_of_objects_is_bounded() {
        let (mut seen, at) = (Seen::default(), Instant::now());
        for number in 0..3 * OBJECTS_MAX as u32 {
            seen.learn(object(number), number, at);
            seen.learn(object(0), 7, at);
            assert_eq!(seen.group(&object(0), None), Some(7));
        }
        assert!(seen.young.len() + seen.old.len() <= OBJECTS_MAX);
    }
}
