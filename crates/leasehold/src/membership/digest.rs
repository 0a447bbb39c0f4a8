//! A digest of what all members of a cluster must have in common: the virtual servers, the origins, the
//! handle key and the times. A member that has something else would give out handles that others refuse, or
//! would refer clients to the wrong server.

use std::hash::Hasher;
use std::path::Path;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::Failure;
use crate::config::cluster::ClusterConfig;
use crate::config::origins::OriginConfig;

/// The digest, in hexadecimal digits.
///
/// # Errors
/// If the handle key cannot be read. It is not made: each member would make another one.
pub fn of(config: &ClusterConfig, origins: &[OriginConfig], key: Option<&Path>) -> Result<String, Failure> {
    let key = key.unwrap_or(Path::new(""));
    let failed = |error: std::io::Error| {
        Failure(format!(
            "cannot read the handle key {}: {error}; make it with: (umask 077; head -c 16 /dev/urandom >{0}), and copy it to all members",
            key.display()
        ))
    };
    let secret = std::fs::read(key).map_err(failed)?;
    // The processes of the servers check more.
    crate::stack::handle_key(key)?;
    let mut hasher = SipHasher24::new_with_keys(0, 0);
    let mut add = |bytes: &[u8]| {
        hasher.write(&(bytes.len() as u64).to_be_bytes());
        hasher.write(bytes);
    };
    add(&secret);
    add(&config.term.as_millis().to_be_bytes());
    for server in &config.servers {
        add(server.address.to_string().as_bytes());
    }
    for origin in origins {
        add(origin.url.to_string().as_bytes());
        add(origin.path.as_bytes());
        add(origin.server.map(|server| server.to_string()).unwrap_or_default().as_bytes());
    }
    Ok(format!("{:032x}", hasher.finish128().as_u128()))
}
