//! Bytes that are not a valid compound.

use proptest::prelude::*;
use protocol::nfs4::{ArgOp, Operation};

use crate::wire::{ROOT, bytes, serve_root, tagged};

/// Whatever bytes arrive, the server sends a reply and keeps running.
#[test]
fn no_bytes_bring_the_server_down() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (served, client) = runtime.block_on(async {
        let served = serve_root().await;
        let client = served.client(0).await;
        (served, std::cell::RefCell::new(client))
    });
    let operations: Vec<u32> = Operation::ALL.iter().map(|operation| *operation as u32).collect();
    let strategy = (
        0..3u32,
        proptest::sample::select(operations),
        proptest::collection::vec(any::<u8>(), 0..160),
        proptest::collection::vec(proptest::sample::select(vec![0u8, 1, 2, 4, 8, 255]), 0..160),
    );
    proptest!(ProptestConfig::with_cases(2000), |((minor, operation, random, small) in strategy)| {
        for tail in [&random, &small] {
            // PUTROOTFH, then an operation with arbitrary arguments.
            let mut call = bytes(&tagged(minor, b"", vec![ROOT, ArgOp::Illegal(operation)]));
            call.extend_from_slice(tail);
            call.resize(call.len().next_multiple_of(4), 0);
            let reply = runtime.block_on(client.borrow_mut().raw(&call));
            prop_assert!(reply.len() >= 16);
            let reply = runtime.block_on(client.borrow_mut().raw(&tail[..tail.len() / 4 * 4]));
            prop_assert!(reply.len() >= 16);
        }
    });
    drop(served);
}
