//! The table against the rules.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Open { file: u8, owner: u8, access: Share, deny: Share },
    Close(u8),
    Downgrade(u8, Share, Share),
    Admit(u8, Share, Option<HolderId>),
    AdmitOpen(u8, Share),
}

/// An open in the model: the shares it was made and extended with, as far as it still has them.
#[derive(Clone, Debug)]
struct Model {
    id: OpenId,
    file: u8,
    owner: u8,
    parts: Vec<(Share, Share)>,
}

impl Model {
    fn share(&self) -> (Share, Share) {
        union(&self.parts)
    }
}

fn union(parts: &[(Share, Share)]) -> (Share, Share) {
    parts.iter().fold((Share::empty(), Share::empty()), |all, part| (all.0 | part.0, all.1 | part.1))
}

fn is_union_of_some(parts: &[(Share, Share)], wanted: (Share, Share)) -> bool {
    let within: Vec<_> =
        parts.iter().copied().filter(|part| wanted.0.contains(part.0) && wanted.1.contains(part.1)).collect();
    !within.is_empty() && union(&within) == wanted
}

fn share() -> impl Strategy<Value = Share> {
    (0u8..4).prop_map(Share::from_bits_truncate)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..3, 0u8..4, share(), share())
            .prop_map(|(file, owner, access, deny)| Step::Open { file, owner, access, deny }),
        1 => (0u8..20).prop_map(Step::Close),
        2 => (0u8..20, share(), share()).prop_map(|(open, access, deny)| Step::Downgrade(open, access, deny)),
        1 => (0u8..3, share(), proptest::option::of(0u64..2))
            .prop_map(|(file, share, except)| Step::Admit(file, share, except.map(HolderId))),
        1 => (0u8..20, share()).prop_map(|(open, share)| Step::AdmitOpen(open, share)),
    ]
}

fn file(number: u8) -> Handle {
    Handle::new(&[number]).unwrap()
}

/// Owners 0 and 1 belong to holder 0, the others to holder 1.
fn holder(owner: u8) -> HolderId {
    HolderId(u64::from(owner / 2))
}

fn opening(owner: u8, access: Share, deny: Share) -> Opening {
    let (holder, owner) = (Some(holder(owner)), Owner(Bytes::copy_from_slice(&[owner])));
    Opening { holder, owner, shares: Shares { access, deny } }
}

fn open_like_the_model(shares: &mut ShareTable, model: &mut Vec<Model>, id: OpenId, new: &Model) {
    let (access, deny) = new.share();
    let opens = model.iter().filter(|open| open.file == new.file);
    let conflict =
        opens.map(Model::share).any(|other| other.1.intersects(access) || other.0.intersects(deny));
    let mine = model.iter_mut().find(|open| open.file == new.file && open.owner == new.owner);
    let expected = match (access.is_empty(), conflict, &mine) {
        (true, ..) => Err(Status::Inval),
        (_, true, _) => Err(Status::ShareDenied),
        (_, _, Some(open)) => Ok(open.id),
        _ => Ok(id),
    };
    assert_eq!(shares.open(&file(new.file), id, opening(new.owner, access, deny)), expected);
    if expected.is_ok() {
        match mine {
            Some(open) => open.parts.push((access, deny)),
            None => model.push(new.clone()),
        }
    }
}

fn downgrade_like_the_model(shares: &mut ShareTable, open: &mut Model, wanted: (Share, Share)) {
    let allowed = is_union_of_some(&open.parts, wanted);
    assert_eq!(shares.downgrade(open.id, Shares { access: wanted.0, deny: wanted.1 }).is_ok(), allowed);
    if allowed {
        open.parts.retain(|part| wanted.0.contains(part.0) && wanted.1.contains(part.1));
    }
}

proptest! {
    #[test]
    fn no_two_opens_are_in_each_others_way(steps in proptest::collection::vec(step(), 1..80)) {
        let mut shares = ShareTable::default();
        let mut model: Vec<Model> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let id = OpenId(number as u64);
            match step {
                Step::Open { file, owner, access, deny } => {
                    let new = Model { id, file, owner, parts: vec![(access, deny)] };
                    open_like_the_model(&mut shares, &mut model, id, &new);
                }
                Step::Close(index) if (index as usize) < model.len() => {
                    let open = model.remove(index as usize);
                    prop_assert_eq!(shares.close(open.id), Ok(file(open.file)));
                    prop_assert_eq!(shares.close(open.id), Err(Status::BadStateId));
                }
                Step::Close(_) => prop_assert_eq!(shares.close(OpenId(u64::MAX)), Err(Status::BadStateId)),
                Step::Downgrade(index, access, deny) => if let Some(open) = model.get_mut(index as usize) {
                    downgrade_like_the_model(&mut shares, open, (access, deny));
                },
                Step::Admit(number, share, except) => {
                    let denied = model.iter().any(|open| {
                        open.file == number && Some(holder(open.owner)) != except && open.share().1.intersects(share)
                    });
                    prop_assert_eq!(shares.admit(&file(number), share, except).is_err(), denied);
                }
                Step::AdmitOpen(index, share) => if let Some(open) = model.get(index as usize) {
                    let admitted = share == Share::READ || open.share().0.contains(share);
                    prop_assert_eq!(shares.admit_open(&file(open.file), open.id, share).is_ok(), admitted);
                    prop_assert_eq!(shares.of(open.id).map(|(_, opening)| opening.shares.access), Some(open.share().0));
                },
            }
            prop_assert_eq!(shares.len(), model.len());
            prop_assert_eq!(shares.denying(), model.iter().filter(|open| !open.share().1.is_empty()).count());
            for of in 0..3 {
                let others = shares.others(&file(of), Some(HolderId(0)));
                let theirs = model.iter().filter(|open| open.file == of && holder(open.owner) != HolderId(0));
                prop_assert_eq!(others.open, theirs.clone().count() > 0);
                prop_assert_eq!(others.write, theirs.clone().any(|open| open.share().0.contains(Share::WRITE)));
            }
        }
        for open in model {
            shares.close(open.id).unwrap();
        }
        prop_assert!(shares.is_empty() && shares.files.is_empty() && shares.denying() == 0);
    }
}
