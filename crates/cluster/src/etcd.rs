//! The store of a cluster in etcd 3.4 or newer, over the JSON gateway of its API v3.
//!
//! A transaction is one HTTP request, `POST /v3/kv/txn`, which etcd carries out at one moment. Its reads are
//! linearizable: etcd answers only after a majority of its members has confirmed that the answer is current.
//!
//! A transaction is not idempotent, so a request that may have reached etcd is never sent again by the same
//! call. The caller reads the store to learn whether the transaction was carried out. A read-only caller may
//! simply call again.
//!
//! Over TLS, the certificate of each endpoint must have the host of its URL.

mod endpoint;
#[cfg(test)]
mod tests;
mod wire;

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

pub use endpoint::{Endpoint, EndpointError};

use crate::store::{Committed, Store, StoreError, Transaction};

/// How long an endpoint may take to accept a connection.
pub const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a call may take, with all its attempts to connect.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// Longest answer, in bytes.
pub const ANSWER_MAX_BYTES: usize = 8 << 20;

/// How long the reason for the end of a connection is waited for.
const ENDED_MAX: Duration = Duration::from_millis(100);

/// The path of a transaction.
const TXN: &str = "/v3/kv/txn";

/// Makes the configuration of TLS for a new connection, so that certificates that are replaced are used from
/// then on. The error says why there is none.
#[derive(Clone)]
pub struct Tls(Arc<Configure>);

type Configure = dyn Fn() -> Result<Arc<ClientConfig>, String> + Send + Sync;

impl Tls {
    /// With the configurations that this returns.
    pub fn new(configure: impl Fn() -> Result<Arc<ClientConfig>, String> + Send + Sync + 'static) -> Tls {
        Tls(Arc::new(configure))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// A store in etcd.
///
/// It keeps one idle connection. After a failure, the next call begins with the next endpoint. Calls at the
/// same time have a connection each.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<Endpoint>,
    tls: Option<Tls>,
    route: Mutex<Route>,
}

/// The way to etcd, as far as calls have found it.
#[derive(Debug, Default)]
struct Route {
    /// The idle connection.
    idle: Option<Connection>,
    /// Index of the endpoint that a call without a connection tries first.
    first: usize,
    /// The id of the cluster that answered first.
    cluster: Option<u64>,
}

/// A connection to an endpoint. Dropping it closes it.
#[derive(Debug)]
struct Connection {
    /// Index of the endpoint.
    endpoint: usize,
    sender: SendRequest<Full<Bytes>>,
    task: Carrying,
}

/// The task of a connection. Its result is why the connection ended, if that is known.
type Carrying = JoinHandle<Option<String>>;

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// No answer.
enum Failed {
    /// No byte of the request was sent.
    Unsent(String),
    /// The request may have been sent.
    Sent(String),
}

impl Etcd {
    /// A store in the cluster with these endpoints. Nothing is sent before the first transaction.
    pub fn new(endpoints: &[Endpoint]) -> Etcd {
        Etcd { endpoints: endpoints.to_vec(), tls: None, route: Mutex::default() }
    }

    /// The same, with TLS for the endpoints that have it.
    pub fn with_tls(endpoints: &[Endpoint], tls: Tls) -> Etcd {
        Etcd { tls: Some(tls), ..Etcd::new(endpoints) }
    }

    /// No code panics while it holds the lock, and each assignment leaves the route valid.
    fn route(&self) -> MutexGuard<'_, Route> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call begins after this endpoint.
    fn avoid(&self, endpoint: usize) {
        self.route().first = (endpoint + 1) % self.endpoints.len().max(1);
    }

    /// Sends over the idle connection, or over a new one to the first endpoint that accepts it. Returns the
    /// HTTP status and the body.
    async fn exchange(&self, body: &Bytes) -> Result<(Connection, u16, Bytes), StoreError> {
        let deadline = Instant::now() + CALL_MAX;
        let idle = self.route().idle.take();
        if let Some(mut connection) = idle {
            let endpoint = connection.endpoint;
            match connection.send(&self.endpoints[endpoint], body, deadline).await {
                Ok((status, answer)) => return Ok((connection, status, answer)),
                Err(Failed::Sent(cause)) => return Err(self.unknown(endpoint, &cause)),
                // The endpoint closed the connection while it was idle. Connecting again is safe.
                Err(Failed::Unsent(cause)) => {
                    tracing::debug!("etcd {}: {cause}; connecting again", self.endpoints[endpoint]);
                    self.route().first = endpoint;
                }
            }
        }
        let count = self.endpoints.len();
        let first = self.route().first;
        let mut causes = Vec::new();
        for endpoint in (first..count).chain(0..first) {
            let address = &self.endpoints[endpoint];
            let attempt = async {
                let mut connection = self.connect(endpoint, deadline).await.map_err(Failed::Unsent)?;
                let (status, answer) = connection.send(address, body, deadline).await?;
                Ok((connection, status, answer))
            };
            match attempt.await {
                Ok(exchanged) => return Ok(exchanged),
                Err(Failed::Sent(cause)) => return Err(self.unknown(endpoint, &cause)),
                Err(Failed::Unsent(cause)) => {
                    tracing::debug!("etcd {address}: {cause}");
                    self.avoid(endpoint);
                    causes.push(format!("{address}: {cause}"));
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        if causes.is_empty() {
            return Err(StoreError::Refused("no etcd endpoint is configured; name at least one".to_owned()));
        }
        Err(StoreError::Unknown(format!("cannot connect to etcd: {}", causes.join("; "))))
    }

    /// Connects to the endpoint with this index.
    async fn connect(&self, endpoint: usize, deadline: Instant) -> Result<Connection, String> {
        let address = &self.endpoints[endpoint];
        let end = deadline.min(Instant::now() + CONNECT_MAX);
        let connecting = async {
            let stream = TcpStream::connect(address.address()).await.map_err(|error| error.to_string())?;
            // A request is one small write, and waits for its answer.
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            if !address.is_secure() {
                return begin(stream).await;
            }
            let tls = self.tls.as_ref().ok_or("it needs TLS, which is not configured")?;
            let name = ServerName::try_from(address.host().to_owned()).map_err(|error| error.to_string())?;
            let secured = TlsConnector::from((tls.0)()?).connect(name, stream).await;
            begin(secured.map_err(|error| wire::quote_text(&format!("TLS: {error}")))?).await
        };
        let (sender, task) =
            timeout_at(end, connecting).await.unwrap_or_else(|_| Err("no connection in time".to_owned()))?;
        Ok(Connection { endpoint, sender, task })
    }

    /// The request to this endpoint has no answer that says what became of it.
    fn unknown(&self, endpoint: usize, cause: &str) -> StoreError {
        self.avoid(endpoint);
        StoreError::Unknown(format!("etcd {}: {cause}", self.endpoints[endpoint]))
    }

    /// The call is over, and its connection may serve the next one.
    fn keep(&self, connection: Connection) {
        let mut route = self.route();
        route.first = connection.endpoint;
        route.idle = Some(connection);
    }
}

impl Store for Etcd {
    async fn transact(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let body = Bytes::from(wire::request(transaction)?);
        let (connection, status, answer) = self.exchange(&body).await?;
        let endpoint = connection.endpoint;
        match wire::answer(status, &answer, transaction) {
            Ok(answer) => {
                let cluster = *self.route().cluster.get_or_insert(answer.cluster);
                if answer.cluster == cluster {
                    self.keep(connection);
                    return Ok(answer.committed);
                }
                self.avoid(endpoint);
                Err(StoreError::Refused(format!(
                    "etcd {} is another etcd cluster: its id is {:x}, that of the first answer was \
                     {cluster:x}; name only endpoints of one cluster",
                    self.endpoints[endpoint], answer.cluster
                )))
            }
            // The endpoint works: the transaction or the permission is wrong.
            Err(StoreError::Refused(cause)) => {
                self.keep(connection);
                Err(StoreError::Refused(format!("etcd {}: {cause}", self.endpoints[endpoint])))
            }
            Err(StoreError::Unknown(cause)) => Err(self.unknown(endpoint, &cause)),
        }
    }
}

/// Begins HTTP on a new connection.
async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(SendRequest<Full<Bytes>>, Carrying), String> {
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|error| chain(&error))?;
    let task = tokio::spawn(async move { connection.await.err().map(|error| chain(&error)) });
    Ok((sender, task))
}

impl Connection {
    /// Sends a request and receives the complete answer: its HTTP status and body.
    async fn send(
        &mut self,
        address: &Endpoint,
        body: &Bytes,
        deadline: Instant,
    ) -> Result<(u16, Bytes), Failed> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(TXN)
            .header(HOST, address.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(|error| Failed::Unsent(error.to_string()))?;
        match timeout_at(deadline, self.sender.ready()).await {
            Ok(Ok(())) => {}
            // With TLS 1.3, a refused certificate shows when the connection has begun.
            Ok(Err(error)) => {
                let ended = timeout(ENDED_MAX, &mut self.task).await;
                let why = ended.ok().and_then(Result::ok).flatten();
                return Err(Failed::Unsent(why.unwrap_or_else(|| chain(&error))));
            }
            Err(_) => return Err(Failed::Unsent("the connection is busy".to_owned())),
        }
        let receiving = async {
            let response = self.sender.try_send_request(request).await.map_err(|mut error| {
                // hyper returns the request only if it wrote nothing of it.
                let is_unsent = error.take_message().is_some();
                let cause = chain(error.error());
                if is_unsent { Failed::Unsent(cause) } else { Failed::Sent(cause) }
            })?;
            let status = response.status().as_u16();
            let answer = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await;
            let answer = answer.map_err(|error| Failed::Sent(chain(&*error)))?;
            Ok((status, answer.to_bytes()))
        };
        match timeout_at(deadline, receiving).await {
            Ok(received) => received,
            Err(_) => Err(Failed::Sent(format!("no answer within {} s", CALL_MAX.as_secs()))),
        }
    }
}

/// An error with its causes, in one line: hyper's own texts leave out the cause.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    wire::quote_text(&text)
}
