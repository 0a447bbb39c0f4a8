//! The accepting side: a server with the keys of its service.

use crate::context::{Context, Step};
use crate::sys::{Credential, Name, NameType, SecurityContext, Usage};
use crate::{Error, Library, keytab_name};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The keys of a service (`nfs/HOST@REALM`). Cheap to clone.
#[derive(Clone)]
pub struct Acceptor {
    library: Library,
    credential: Arc<Credential>,
}

impl Acceptor {
    /// The keys of a keytab, of each service in it. `None` is the library's default: KRB5_KTNAME, or
    /// `default_keytab_name` of krb5.conf. Fails if the keytab cannot be read or has no key. A key that is
    /// added to the file later is found.
    pub fn new(library: &Library, keytab: Option<&Path>) -> Result<Acceptor, Error> {
        Acceptor::acquire(*library, None, keytab)
    }

    /// As [`Acceptor::new`], but with the keys of one service alone, such as `nfs`, for all hosts. A ticket
    /// for another service of the keytab is refused.
    pub fn for_service(library: &Library, service: &str, keytab: Option<&Path>) -> Result<Acceptor, Error> {
        Acceptor::acquire(*library, Some(service), keytab)
    }

    fn acquire(library: Library, service: Option<&str>, keytab: Option<&Path>) -> Result<Acceptor, Error> {
        let functions = library.functions;
        let store = keytab.map(keytab_name).transpose()?.map(|name| (c"keytab", name));
        let name =
            service.map(|service| Name::import(functions, service, NameType::HostBased)).transpose()?;
        let what = keytab
            .map_or_else(|| "the default keytab".to_owned(), |path| format!("keytab {}", path.display()));
        let acquired = Credential::acquire(functions, name.as_ref(), Usage::Accept, store.as_slice(), &what);
        let credential = acquired.map_err(|error| {
            let service = service.unwrap_or("nfs");
            error.with_way_out(&format!("give it a key of {service}/HOST@REALM (kadmin: ktadd)"))
        })?;
        Ok(Acceptor { library, credential: Arc::new(credential) })
    }

    /// Begins to accept a context.
    pub fn begin(&self) -> Accepting {
        let context = SecurityContext::new(self.library.functions);
        Accepting { credential: Arc::clone(&self.credential), context }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Acceptor")
    }
}

/// A context that the acceptor has not established yet.
pub struct Accepting {
    credential: Arc<Credential>,
    context: SecurityContext,
}

impl Accepting {
    /// Takes the initiator's next token. An error may carry a token for the initiator.
    pub fn step(mut self, token: &[u8]) -> Result<Step<Accepting>, Error> {
        let outcome = self.context.accept(&self.credential, token)?;
        if outcome.done {
            Context::established(self.context, outcome)
        } else {
            Ok(Step::Continue { token: outcome.token, next: self })
        }
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Accepting")
    }
}
