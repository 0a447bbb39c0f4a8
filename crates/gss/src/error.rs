//! Errors of GSS-API: the two status codes of RFC 2744 with their texts, as a message of one line.

use std::fmt;

/// Bits of a major status that say that a call failed: the calling and routine errors of RFC 2744, 3.9.1.
const FAILED: u32 = 0xffff_0000;
const BAD_SIGNATURE: u32 = 6 << 16;
const NO_CREDENTIAL: u32 = 7 << 16;
const DEFECTIVE_TOKEN: u32 = 9 << 16;
const CREDENTIALS_EXPIRED: u32 = 11 << 16;
const CONTEXT_EXPIRED: u32 = 12 << 16;
const FAILURE: u32 = 13 << 16;
/// `KRB5KRB_AP_ERR_TKT_EXPIRED`: MIT's library has no major status of its own for a ticket that has expired.
const TICKET_EXPIRED: u32 = -1_765_328_352_i32 as u32;
/// `KRB5_REALM_CANT_RESOLVE` and `KRB5_KDC_UNREACH`.
const NO_KDC: [u32; 2] = [-1_765_328_230_i32 as u32, -1_765_328_228_i32 as u32];

/// Does the major status say that the call failed? The rest of its bits are information.
pub(crate) fn is_failure(major: u32) -> bool {
    major & FAILED != 0
}

/// Does the major status add nothing to a text of the minor status?
pub(crate) fn is_unspecific(major: u32) -> bool {
    matches!(major & FAILED, FAILURE | NO_CREDENTIAL)
}

/// Why a call failed. The message has one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    message: String,
    major: u32,
    minor: u32,
    token: Option<Vec<u8>>,
}

impl Error {
    /// An error with these status codes. Control characters of the message become spaces.
    pub(crate) fn new(message: &str, major: u32, minor: u32) -> Error {
        let clean = |character: char| if character.is_control() { ' ' } else { character };
        Error { message: message.chars().map(clean).collect(), major, minor, token: None }
    }

    /// An error that did not come from a call of the library: its major status is `GSS_S_FAILURE`.
    pub(crate) fn here(message: &str) -> Error {
        Error::new(message, FAILURE, 0)
    }

    /// A token that is refused before the library sees it.
    pub(crate) fn defective(message: &str) -> Error {
        Error::new(message, DEFECTIVE_TOKEN, 0)
    }

    /// A message or token that its sender did not make.
    pub(crate) fn bad_signature(message: &str) -> Error {
        Error::new(message, BAD_SIGNATURE, 0)
    }

    pub(crate) fn with_token(mut self, token: Option<Vec<u8>>) -> Error {
        self.token = token.filter(|token| !token.is_empty());
        self
    }

    /// Appends the way out.
    pub(crate) fn with_way_out(mut self, way_out: &str) -> Error {
        self.message = format!("{}; {way_out}", self.message);
        self
    }

    /// The major status of RFC 2744: the kind of the error, independent of the mechanism. `GSS_S_FAILURE` if
    /// the cause is outside of the library, such as a keytab that cannot be opened.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The minor status: the cause in the numbers of Kerberos. 0 if there is none.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// The error token that the peer should get, if the library made one.
    pub fn token(&self) -> Option<&[u8]> {
        self.token.as_deref()
    }

    /// Has the context, the credential or a ticket expired?
    pub fn is_expired(&self) -> bool {
        self.minor == TICKET_EXPIRED || matches!(self.major & FAILED, CREDENTIALS_EXPIRED | CONTEXT_EXPIRED)
    }

    /// Did no KDC of the realm answer, or was its name not found? One may answer later.
    pub fn is_no_answer(&self) -> bool {
        NO_KDC.contains(&self.minor)
    }

    /// Is the message or its token not authentic: changed, truncated, or of another context?
    pub fn is_bad_signature(&self) -> bool {
        matches!(self.major & FAILED, BAD_SIGNATURE | DEFECTIVE_TOKEN)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::{CONTEXT_EXPIRED, CREDENTIALS_EXPIRED, Error, NO_KDC, TICKET_EXPIRED};

    #[test]
    fn the_major_status_gives_the_kind_without_its_information_bits() {
        assert!(Error::new("a", CREDENTIALS_EXPIRED | 1, 5).is_expired());
        assert!(Error::new("a", CONTEXT_EXPIRED, 5).is_expired());
        assert!(Error::new("a", 13 << 16, TICKET_EXPIRED).is_expired());
        assert!(!Error::here("a").is_expired());
        assert!(NO_KDC.iter().all(|minor| Error::new("a", 13 << 16, *minor).is_no_answer()));
        assert!(!Error::new("a", 13 << 16, TICKET_EXPIRED).is_no_answer());
        assert!(Error::defective("a").is_bad_signature());
        assert!(!Error::here("a").is_bad_signature());
    }

    #[test]
    fn a_message_has_one_line() {
        let error = Error::here("first\nsecond").with_way_out("do this");
        assert_eq!(error.to_string(), "first second; do this");
    }
}
