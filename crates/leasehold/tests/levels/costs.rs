//! What an event costs at each level, beside the table in docs/reference/costs.md. A proxy before a proxy
//! costs its origin what the table says. What it answers by itself costs nothing further down.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use client::Origin;
use vfs::{
    AccessMask, CreateHow, Lock, LockKind, LockRequest, Locked, SetAttributes, Share, StateidBasis, Want,
};

use crate::chain::{Calls, Chain, LAST, PROXIES, named, open, owner, read, request, until, user};

/// The kind of delegation that the origin grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    None,
    Read,
    Write,
}

struct Bench {
    column: Column,
    chain: Chain,
    clients: [Arc<dyn Origin>; 2],
    v3: Arc<dyn Origin>,
}

/// The calls at one level.
fn calls(of: &[(&str, u64)]) -> Calls {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

impl Bench {
    async fn new(column: Column) -> Bench {
        let delegations = if column == Column::None { "never" } else { "always" };
        let chain = Chain::new(&["--delegations", delegations], &[]);
        let mode = if column == Column::Write { 0o666 } else { 0o444 };
        let file = chain.served().join("file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let clients = [chain.client(LAST, "4.2").await, chain.client(LAST, "4.1").await];
        let v3 = chain.client(LAST, "3").await;
        Bench { column, chain, clients, v3 }
    }

    /// Checks what an event costs at every level, by column.
    async fn costs<T>(&self, event: &str, doing: impl Future<Output = T>, [none, read, write]: Row) -> T {
        let (result, cost) = self.chain.cost(doing).await;
        let expected = match self.column {
            Column::None => none,
            Column::Read => read,
            Column::Write => write,
        };
        let expected: [Calls; PROXIES] = std::array::from_fn(|_| calls(expected));
        assert_eq!(cost, expected, "{event}, {:?}", self.column);
        result
    }

    fn share(&self) -> Share {
        if self.column == Column::Write { Share::READ | Share::WRITE } else { Share::READ }
    }

    async fn round(&self) {
        let opened = open(&self.clients[0], "warm", self.share()).await;
        assert_eq!(read(&self.clients[0], &opened).await, "content");
        self.clients[0].close(&user(), opened.id).await.unwrap();
        self.settled().await;
    }

    /// Waits until the deferred CLOSEs are sent, in the column that has them.
    async fn settled(&self) {
        let of = |calls: &Calls, name: &str| calls.get(name).copied().unwrap_or(0);
        let is_closed = |calls: &Calls| of(calls, "CLOSE") >= of(calls, "OPEN");
        let settled = || self.column != Column::None || self.chain.asked().iter().all(is_closed);
        until("all is closed", settled).await;
    }

    /// Repeats an open until it costs no more than a GETATTR at any level: nothing is racy then.
    async fn warm(&self) {
        for _ in 0..100 {
            let ((), cost) = self.chain.cost(self.round()).await;
            let costs = |calls: &Calls| calls.contains_key("READ") || calls.contains_key("ACCESS");
            if !cost.iter().any(costs) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it is read again and again");
    }
}

/// The calls at each level: without a delegation, with one for reading, with one for writing.
type Row = [&'static [(&'static str, u64)]; 3];

const FREE: Row = [&[], &[], &[]];
const GETATTR: Row = [&[("GETATTR", 1)], &[], &[]];

/// The rows about a file.
async fn file(bench: &Bench) {
    let [one, two] = &bench.clients;
    let share = bench.share();
    let opened = bench.costs("open, cached", open(one, "one", share), [&[("OPEN", 1)], &[], &[]]).await;
    bench.costs("stat", one.getattr(&user(), &opened.handle), FREE).await.unwrap();
    assert_eq!(bench.costs("read, cached", read(one, &opened), FREE).await, "content");
    let second = bench.costs("second client opens", open(two, "two", share), GETATTR).await;
    assert_eq!(bench.costs("and reads", read(two, &second), FREE).await, "content");
    bench.costs("one of two closes", two.close(&user(), second.id), FREE).await.unwrap();

    let lock = Lock { owner: owner("locker"), kind: LockKind::Shared, offset: 0, length: 10 };
    let locking = async {
        let request = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
        assert_eq!(one.lock(&user(), opened.id, &request).await.unwrap(), Locked::Granted);
        one.unlock(&user(), opened.id, &lock.owner, (0, 10)).await.unwrap();
    };
    let both: &[_] = &[("LOCK", 1), ("LOCKU", 1)];
    bench.costs("byte-range lock", locking, [both, both, &[]]).await;
    bench.costs("a look after a lock", one.getattr(&user(), &opened.handle), GETATTR).await.unwrap();

    let (v3, root, by) = (&bench.v3, bench.v3.root(&user()).await.unwrap().handle, user());
    let name = named("file");
    let found = v3.lookup(&user(), &root, &named("file"), Want::None).await.unwrap().node.handle;
    assert!(found.as_bytes().len() <= protocol::nfs3::FHSIZE);
    v3.access(&user(), &found, AccessMask::READ).await.unwrap();
    bench.costs("GETATTR of v3", v3.getattr(&user(), &found), GETATTR).await.unwrap();
    let look = v3.lookup(&by, &root, &name, Want::None);
    bench.costs("LOOKUP of v3", look, GETATTR).await.unwrap();
    let reading = v3.read(&by, &found, StateidBasis::Anonymous, 0, 100);
    bench.costs("READ of v3", reading, FREE).await.unwrap();

    let closing = async {
        one.close(&user(), opened.id).await.unwrap();
        bench.settled().await;
    };
    bench.costs("close after reading", closing, [&[("CLOSE", 1)], &[], &[]]).await;
}

/// The rows about names.
async fn names(bench: &Bench) {
    let [one, two] = &bench.clients;
    let (by, absent) = (user(), named("absent"));
    let (root, v3_root) = (one.root_handle(), bench.v3.root(&user()).await.unwrap().handle);
    one.getattr(&user(), &root).await.unwrap();
    one.access(&user(), &root, AccessMask::LOOKUP).await.unwrap();
    one.lookup(&user(), &root, &named("absent"), Want::None).await.unwrap_err();
    let look = bench.v3.lookup(&by, &v3_root, &absent, Want::None);
    bench.costs("LOOKUP of v3, absent", look, GETATTR).await.unwrap_err();
    bench.costs("GETATTR of a directory", two.getattr(&user(), &root), GETATTR).await.unwrap();
    let look = two.lookup(&by, &root, &absent, Want::None);
    bench.costs("LOOKUP of v4, absent", look, FREE).await.unwrap_err();
    let set = SetAttributes { size: Some(0), mode: Some(0o644), ..SetAttributes::default() };
    let mut new = request(&root, "new", "creator", Share::READ | Share::WRITE);
    new.create = Some((CreateHow::Unchecked, set));
    let row: Row = [&[("OPEN", 1)]; 3];
    let made = bench.costs("OPEN that creates", two.open(&user(), &new), row).await.unwrap();
    two.close(&user(), made.id).await.unwrap();
}

async fn column(column: Column) {
    let bench = Bench::new(column).await;
    bench.warm().await;
    file(&bench).await;
    names(&bench).await;
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_delegation_each_level_costs_what_the_table_says() {
    column(Column::None).await;
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_read_delegation_no_level_is_asked() {
    column(Column::Read).await;
}

// Promise: chained-proxies
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_write_delegation_no_level_is_asked() {
    column(Column::Write).await;
}
