//! The HTTP side: a few paths, GET and HEAD.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::families::Snapshot;
use super::health::{self, Troubles};
use super::history::{self, History};
use super::{Measured, family};
use crate::{membership, status};

/// Connections at one time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may be idle, and a request may take to arrive.
const HEADER_WAIT: Duration = Duration::from_secs(30);
/// Longest request, in bytes.
const REQUEST_MAX_BYTES: usize = 16 << 10;
/// How long a connection may last. Prometheus connects again.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// How long to wait after a failed accept, for instance for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
/// The page. It asks for `/overview` and nothing else, and needs no other file.
const PAGE: &str = include_str!("page.html");
/// It may run its own script, and connect to this server.
const PAGE_MAY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How many clients and files the page shows.
const MOST_USED: usize = 8;

/// The sources of all answers.
struct Sources {
    measured: Measured,
    /// The source of `leasehold top`.
    usage: status::Source,
    history: History,
}

/// Answers on the listener. Dropping the future ends its connections.
pub async fn serve(listener: TcpListener, measured: Measured, usage: status::Source) {
    let sources = Arc::new(Sources { measured, usage, history: History::default() });
    tokio::join!(sources.history.keep(&sources.measured), accept(listener, &sources));
}

async fn accept(listener: TcpListener, sources: &Arc<Sources>) {
    let capacity = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(permit) = capacity.clone().acquire_owned().await {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!("metrics: cannot accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let sources = sources.clone();
        connections.spawn(async move {
            // A client that goes away loses its answer.
            let _ = tokio::time::timeout(CONNECTION_MAX, converse(stream, from.ip(), sources)).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: TcpStream, from: IpAddr, sources: Arc<Sources>) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| {
        let sources = sources.clone();
        async move { Ok::<_, Infallible>(answer(&request, from, &sources).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WAIT)
        .max_buf_size(REQUEST_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer<B>(request: &Request<B>, from: IpAddr, sources: &Sources) -> Response<Full<Bytes>> {
    let measured = &sources.measured;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => response(StatusCode::OK, OPENMETRICS, family::text(Snapshot::of(measured))),
        "/healthz" => verdict(&health::health(measured).await),
        "/readyz" => verdict(&health::readiness(measured)),
        "/status" => response(StatusCode::OK, JSON, format!("{}\n", (measured.status)())),
        "/overview" => {
            let names = from.to_canonical().is_loopback() && is_local(request);
            response(StatusCode::OK, JSON, overview(sources, names).to_string())
        }
        "/" => {
            let mut page = response(StatusCode::OK, HTML, PAGE.to_owned());
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_MAY));
            page
        }
        _ => {
            let text = "there are /, /metrics, /healthz, /readyz and /status\n";
            response(StatusCode::NOT_FOUND, TEXT, text.to_owned())
        }
    }
}

/// The contents of the page: the summary of `leasehold status`, the troubles, and the last hour.
/// With the names of files, if `names` is true.
fn overview(Sources { measured, usage, history }: &Sources, names: bool) -> serde_json::Value {
    let used = usage();
    let status = &used["status"];
    let now = status::seconds(SystemTime::now());
    let most = |kind: &str| used[kind].as_array().map(|all| &all[..all.len().min(MOST_USED)]);
    json!({
        "role": measured.role,
        "origin": status["origin"],
        "summary": status.get("cluster").map_or_else(|| status::summary::text(status, now), membership::command::text),
        "troubles": status::trouble::all(status),
        "interval_s": history::INTERVAL.as_secs(),
        "samples": history.until_now(measured),
        "clients": most("clients"),
        "files": most("files").filter(|_| names),
    })
}

/// Did the browser ask for this machine by its own address, and no other server for it? A page of another
/// site that resolves to this machine does not.
fn is_local<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = host.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| bare.parse());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_own = name == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback());
    is_own && !["forwarded", "x-forwarded-for", "via"].iter().any(|name| headers.contains_key(*name))
}

/// 200 and `ok`, or 503 and what is wrong.
fn verdict(troubles: &Troubles) -> Response<Full<Bytes>> {
    if troubles.is_empty() {
        return response(StatusCode::OK, TEXT, "ok\n".to_owned());
    }
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{}\n", troubles.join("\n")))
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
