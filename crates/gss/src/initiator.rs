//! The initiating side: a client with the tickets of a user, or with a key to get them.

use crate::context::{Context, Step};
use crate::sys::{Credential, Name, NameType, SecurityContext, Usage};
use crate::{Error, Library, keytab_name};
use std::ffi::{CStr, CString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The place of an initiator's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A ticket cache by its name, such as `FILE:/tmp/krb5cc_1000`.
    Cache(String),
    /// A keytab. The library gets tickets with its key, and renews them. It keeps them in memory, one set for
    /// each path and principal in this process.
    Keytab {
        /// The file.
        path: PathBuf,
        /// The principal whose key is used; `None` is the first one of the keytab.
        principal: Option<String>,
    },
    /// The library's default: KRB5CCNAME, or `default_ccache_name` of krb5.conf.
    Default,
}

/// The credentials of a user. Cheap to clone.
#[derive(Clone)]
pub struct Initiator {
    library: Library,
    credential: Arc<Credential>,
    principal: Arc<str>,
}

impl Initiator {
    /// Acquires credentials. Asks the KDC if they come from a keytab. Fails if there are none.
    pub fn new(library: &Library, source: &Source) -> Result<Initiator, Error> {
        let functions = library.functions;
        let (mut store, mut name): (Vec<(&CStr, CString)>, Option<Name>) = (Vec::new(), None);
        let (what, way_out) = match source {
            Source::Cache(cache) => {
                let what = format!("ticket cache {cache}");
                let text = CString::new(cache.as_str());
                store.push((c"ccache", text.map_err(|error| Error::here(&format!("{what}: {error}")))?));
                (what, format!("get tickets: kinit -c {cache}"))
            }
            Source::Keytab { path, principal } => {
                let what = format!("keytab {}", path.display());
                let file = keytab_name(path)?;
                let import = |text: &String| Name::import(functions, text, NameType::Principal);
                name = principal.as_ref().map(import).transpose()?;
                // Without a key, the library would report that it has no tickets.
                let has_key = Credential::acquire(
                    functions,
                    name.as_ref(),
                    Usage::Accept,
                    &[(c"keytab", file.clone())],
                    &what,
                );
                has_key.map_err(|error| error.with_way_out("give it a key (kadmin: ktadd)"))?;
                let memory = format!("MEMORY:{} {}", principal.as_deref().unwrap_or(""), path.display());
                let memory =
                    CString::new(memory).map_err(|error| Error::here(&format!("{what}: {error}")))?;
                store.extend([(c"client_keytab", file), (c"ccache", memory)]);
                (
                    what,
                    "make sure that its key is current (kadmin: ktadd), and that the KDC answers".to_owned(),
                )
            }
            Source::Default => ("the default ticket cache".to_owned(), "get tickets: kinit".to_owned()),
        };
        let acquire = || {
            let credential = Credential::acquire(functions, name.as_ref(), Usage::Initiate, &store, &what)?;
            let principal = credential.principal(&what)?.into();
            Ok(Initiator { library: *library, credential: Arc::new(credential), principal })
        };
        acquire().map_err(|error: Error| error.with_way_out(&way_out))
    }

    /// The principal of the credentials, such as `alice@LAB.TEST`.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Begins a context with a service: `target` is `service@host`, such as `nfs@server.example.com`.
    pub fn begin(&self, target: &str) -> Result<Initiating, Error> {
        let target = Name::import(self.library.functions, target, NameType::HostBased)?;
        let context = SecurityContext::new(self.library.functions);
        Ok(Initiating { credential: Arc::clone(&self.credential), target, context })
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Initiator").field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// A context that the initiator has not established yet.
pub struct Initiating {
    credential: Arc<Credential>,
    target: Name,
    context: SecurityContext,
}

impl Initiating {
    /// The next step: the first one without a token, the others with the acceptor's token. Asks for mutual
    /// authentication, integrity and encryption. May ask the KDC for a ticket of the service.
    pub fn step(mut self, token: Option<&[u8]>) -> Result<Step<Initiating>, Error> {
        let outcome = self.context.initiate(&self.credential, &self.target, token)?;
        if outcome.done {
            Context::established(self.context, outcome)
        } else {
            Ok(Step::Continue { token: outcome.token, next: self })
        }
    }
}

impl fmt::Debug for Initiating {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Initiating")
    }
}
