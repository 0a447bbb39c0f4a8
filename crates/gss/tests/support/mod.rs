//! Contexts in a realm with the user alice and the service nfs/localhost.

use gss::{Acceptor, Context, Error, Initiator, Library, Source, Step};
use lab::Realm;
use std::path::Path;

pub const TARGET: &str = "nfs@localhost";

pub fn library() -> Library {
    Library::open().expect("the library is installed with the programs of Kerberos")
}

/// Adds alice and nfs/localhost.
pub fn populate(realm: &Realm) {
    realm.add_user("alice", "secret of alice");
    realm.add_service("nfs/localhost");
}

pub fn cache(path: &Path) -> Source {
    Source::Cache(format!("FILE:{}", path.display()))
}

pub fn acceptor(realm: &Realm) -> Acceptor {
    Acceptor::new(&library(), Some(&realm.keytab(&["nfs/localhost"]))).expect("the keytab is good")
}

pub fn alice(realm: &Realm) -> Initiator {
    Initiator::new(&library(), &cache(&realm.tickets("alice"))).expect("the tickets are good")
}

/// The initiator's first token.
pub fn first_token(initiator: &Initiator) -> Result<Vec<u8>, Error> {
    match initiator.begin(TARGET)?.step(None)? {
        Step::Continue { token, .. } => Ok(token),
        Step::Done { .. } => panic!("the initiator asks for mutual authentication"),
    }
}

/// Exchanges tokens until both sides are done. The initiator's context is first.
pub fn establish(initiator: &Initiator, acceptor: &Acceptor) -> Result<(Context, Context), Error> {
    let (mut initiating, mut accepting) = (initiator.begin(TARGET)?, acceptor.begin());
    let (mut accepted, mut token) = (None, None);
    loop {
        let to_acceptor = match initiating.step(token.as_deref())? {
            Step::Continue { token, next } => {
                initiating = next;
                token
            }
            Step::Done { token: None, context } => {
                return Ok((context, accepted.expect("the acceptor is done first")));
            }
            Step::Done { .. } => panic!("Kerberos ends with the acceptor's token"),
        };
        match accepting.step(&to_acceptor)? {
            Step::Continue { token: answer, next } => {
                (accepting, token) = (next, Some(answer));
            }
            Step::Done { token: answer, context } => {
                (accepting, token, accepted) = (acceptor.begin(), answer, Some(context));
            }
        }
    }
}

/// The message of an error, which must have one line.
pub fn one_line(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.is_empty(), "{text:?}");
    eprintln!("{:#x} {}: {text}", error.major(), error.minor() as i32);
    text
}
