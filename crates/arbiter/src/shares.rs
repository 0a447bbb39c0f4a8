//! Share reservations (RFC 8881, section 9.7): each open says what it does and what it denies to all others.
//!
//! A pure table. Two opens of one file go together if neither does what the other denies. Opens of one owner are no
//! exception; the front that knows the owner turns its second open of a file into an upgrade of the first.

use std::collections::HashMap;

use vfs::{Handle, OpenId, Share, Status};

/// Opens of one file at most; a front's own bounds are lower.
const OPENS_PER_FILE_MAX: usize = 65_536;

/// One open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    id: OpenId,
    access: Share,
    deny: Share,
    /// Every combination that it has had: a downgrade may name no other.
    had: Vec<(Share, Share)>,
}

/// All opens.
#[derive(Debug, Default)]
pub struct Shares {
    files: HashMap<Handle, Vec<Held>>,
    opens: HashMap<OpenId, Handle>,
}

impl Shares {
    /// Enters an open.
    ///
    /// # Errors
    /// `ShareDenied` if another open is in the way; `Inval` if it would do nothing.
    pub fn open(&mut self, handle: Handle, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        if access.is_empty() {
            return Err(Status::Inval);
        }
        let held = self.files.entry(handle).or_default();
        if held.len() >= OPENS_PER_FILE_MAX {
            return Err(Status::Delay);
        }
        if held.iter().any(|other| other.deny.intersects(access) || other.access.intersects(deny)) {
            self.forget_if_unused(&handle);
            return Err(Status::ShareDenied);
        }
        held.push(Held { id, access, deny, had: vec![(access, deny)] });
        self.opens.insert(id, handle);
        Ok(())
    }

    /// Narrows an open to a combination that it has had.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open; `Inval` if it never had the combination.
    pub fn downgrade(&mut self, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        let handle = self.opens.get(&id).ok_or(Status::BadStateId)?;
        let held = self.files.get_mut(handle).ok_or(Status::ServerFault)?;
        let open = held.iter_mut().find(|open| open.id == id).ok_or(Status::ServerFault)?;
        let narrower = open.access.contains(access) && open.deny.contains(deny);
        if !narrower || !open.had.contains(&(access, deny)) {
            return Err(Status::Inval);
        }
        (open.access, open.deny) = (access, deny);
        Ok(())
    }

    /// Ends an open, and says of which file it was.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open.
    pub fn close(&mut self, id: OpenId) -> Result<Handle, Status> {
        let handle = self.opens.remove(&id).ok_or(Status::BadStateId)?;
        if let Some(held) = self.files.get_mut(&handle) {
            held.retain(|open| open.id != id);
        }
        self.forget_if_unused(&handle);
        Ok(handle)
    }

    /// May somebody without an open use the file so?
    ///
    /// # Errors
    /// `ShareDenied` if an open denies it.
    pub fn admit(&self, handle: &Handle, share: Share) -> Result<(), Status> {
        match self.files.get(handle) {
            Some(held) if held.iter().any(|open| open.deny.intersects(share)) => Err(Status::ShareDenied),
            _ => Ok(()),
        }
    }

    /// May this open use this file so?
    ///
    /// # Errors
    /// `BadStateId` if there is no such open of the file; `Access` if it was not opened for that.
    pub fn admit_open(&self, handle: &Handle, id: OpenId, share: Share) -> Result<(), Status> {
        let open = self.files.get(handle).and_then(|held| held.iter().find(|open| open.id == id));
        match open {
            None => Err(Status::BadStateId),
            Some(open) if open.access.contains(share) => Ok(()),
            Some(_) => Err(Status::Access),
        }
    }

    /// Number of opens.
    pub fn len(&self) -> usize {
        self.opens.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.opens.is_empty()
    }

    fn forget_if_unused(&mut self, handle: &Handle) {
        if self.files.get(handle).is_some_and(Vec::is_empty) {
            self.files.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Open(u8, Share, Share),
        Close(u8),
        Downgrade(u8, Share, Share),
        Admit(u8, Share),
    }

    fn share() -> impl Strategy<Value = Share> {
        (0u8..4).prop_map(Share::from_bits_truncate)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..3, share(), share()).prop_map(|(file, access, deny)| Step::Open(file, access, deny)),
            (0u8..20).prop_map(Step::Close),
            (0u8..20, share(), share()).prop_map(|(open, access, deny)| Step::Downgrade(open, access, deny)),
            (0u8..3, share()).prop_map(|(file, share)| Step::Admit(file, share)),
        ]
    }

    fn file(number: u8) -> Handle {
        Handle::new(&[number]).unwrap()
    }

    proptest! {
        /// Against the rule itself: at no time do two opens of one file deny each other what they do.
        #[test]
        fn no_two_opens_are_in_each_others_way(steps in proptest::collection::vec(step(), 1..60)) {
            let mut shares = Shares::default();
            let mut model: Vec<(OpenId, u8, Share, Share)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let pick = |index: u8, model: &[(OpenId, u8, Share, Share)]| model.get(index as usize).copied();
                match step {
                    Step::Open(number_of_file, access, deny) => {
                        let id = OpenId(number as u64);
                        let conflict = model.iter().any(|(_, of, its_access, its_deny)| {
                            *of == number_of_file && (its_deny.intersects(access) || its_access.intersects(deny))
                        });
                        let expected = match (access.is_empty(), conflict) {
                            (true, _) => Err(Status::Inval),
                            (_, true) => Err(Status::ShareDenied),
                            _ => Ok(()),
                        };
                        prop_assert_eq!(shares.open(file(number_of_file), id, access, deny), expected);
                        if expected.is_ok() {
                            model.push((id, number_of_file, access, deny));
                        }
                    }
                    Step::Close(index) => match pick(index, &model) {
                        None => prop_assert_eq!(shares.close(OpenId(u64::MAX)), Err(Status::BadStateId)),
                        Some((id, of, ..)) => {
                            prop_assert_eq!(shares.close(id), Ok(file(of)));
                            model.remove(index as usize);
                        }
                    },
                    Step::Downgrade(index, access, deny) => if let Some((id, _, had_access, had_deny)) = pick(index, &model) {
                        // An open that was never upgraded had one combination only.
                        let same = (access, deny) == (had_access, had_deny);
                        prop_assert_eq!(shares.downgrade(id, access, deny).is_ok(), same);
                    },
                    Step::Admit(number_of_file, share) => {
                        let denied = model.iter().any(|(_, of, _, deny)| *of == number_of_file && deny.intersects(share));
                        prop_assert_eq!(shares.admit(&file(number_of_file), share).is_err(), denied);
                    }
                }
                prop_assert_eq!(shares.len(), model.len());
            }
            for (id, ..) in model {
                shares.close(id).unwrap();
            }
            prop_assert!(shares.is_empty() && shares.files.is_empty());
        }
    }
}
