//! The body of the fuzz target of the journal of delayed writes.

/// Reads any entries as the journal of an earlier process.
pub fn journal(input: &[u8]) {
    crate::journal::read_any(input);
}
