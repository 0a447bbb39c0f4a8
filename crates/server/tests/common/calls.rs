//! Single calls of any program.

use protocol::Call;
use rpc::{AuthSys, Credential, Link, Outgoing, Patience};
use xdr::{Encode, Encoder};

/// Makes a call with AUTH_SYS, as root.
pub async fn call<C: Call>(link: &Link, args: C::Args) -> C::Results {
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    let outgoing = Outgoing {
        program: C::PROGRAM,
        version: C::VERSION,
        procedure: C::NUMBER,
        credential: Credential::Sys(AuthSys::default()),
        arguments: encoder.finish(),
    };
    let answer = link.call(outgoing, Patience::Hard).await.unwrap();
    xdr::from_bytes(answer.results.rest()).unwrap()
}
