//! Names that programs open wherever they look them up, such as `package.json` or `__init__.py`.
//!
//! Before an open, a program or the kernel looks the name up. In a directory that is not known yet, that
//! costs a call, and the open another one. An OPEN by name tells all that a LOOKUP does. It brings the
//! lease and the first bytes as well. So a LOOKUP of such a name is answered from an OPEN, and the open
//! behind it costs nothing.
//!
//! A name counts if it was opened several times, and if most lookups of it led to an open. A program that
//! looks at every `Makefile` and opens none ends that soon.
//!
//! This module is pure. [`crate::guesses`] makes the calls.

use std::collections::HashMap;

use parking_lot::Mutex;
use vfs::Name;

/// Names that are remembered.
const NAMES_MAX: usize = 1024;
/// So many opens make a name one of these.
const OPENED_MIN: u32 = 3;
/// Of so many lookups, at most one leads to no open.
const SHARE: u32 = 4;
/// Older counts weigh half when so many lookups have been counted.
const LOOKED_MAX: u32 = 32;

/// What programs did with a name.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    looked: u32,
    opened: u32,
}

/// Names and what programs did with them, in all directories.
#[derive(Debug, Default)]
pub struct OpenedNames(Mutex<HashMap<Name, Habit>>);

impl OpenedNames {
    /// A file was found under this name by a call.
    pub fn looked(&self, name: &Name) {
        let mut habits = self.0.lock();
        let Some(habit) = habits.get_mut(name) else { return };
        habit.looked += 1;
        if habit.looked >= LOOKED_MAX {
            (habit.looked, habit.opened) = (habit.looked / 2, habit.opened / 2);
        }
    }

    /// A file of this name was opened for reading for the first time.
    pub fn opened(&self, name: &Name) {
        let mut habits = self.0.lock();
        if habits.len() >= NAMES_MAX && !habits.contains_key(name) {
            // Most names are opened once.
            habits.retain(|_, habit| habit.opened >= OPENED_MIN);
            if habits.len() >= NAMES_MAX {
                habits.clear();
            }
        }
        habits.entry(name.clone()).or_default().opened += 1;
    }

    /// Will a program that looks this name up probably open the file?
    pub fn is_likely(&self, name: &Name) -> bool {
        let likely = |habit: &Habit| {
            habit.opened >= OPENED_MIN && habit.looked <= habit.opened + habit.opened.div_ceil(SHARE)
        };
        self.0.lock().get(name).is_some_and(likely)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_is_likely_while_most_lookups_lead_to_an_open() {
        let names = OpenedNames::default();
        let manifest = name("package.json");
        for _ in 0..OPENED_MIN {
            assert!(!names.is_likely(&manifest));
            names.looked(&manifest);
            names.opened(&manifest);
        }
        assert!(names.is_likely(&manifest));
        for _ in 0..200 {
            names.looked(&manifest);
            names.opened(&manifest);
        }
        assert!(names.is_likely(&manifest));
        let vain = (0..).take_while(|_| names.is_likely(&manifest)).inspect(|_| names.looked(&manifest));
        assert!(vain.count() <= LOOKED_MAX as usize / 2, "another program looks, and opens none");
    }

    #[test]
    fn names_that_are_opened_once_give_way() {
        let names = OpenedNames::default();
        (0..OPENED_MIN).for_each(|_| names.opened(&name("often")));
        (0..10 * NAMES_MAX).for_each(|n| names.opened(&name(&format!("n{n}"))));
        assert!(names.is_likely(&name("often")) && names.0.lock().len() <= NAMES_MAX);
    }
}
