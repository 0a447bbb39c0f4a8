//! Messages written word by word, to compare with the derived encoders.

use crate::Call;

/// An example whose bytes have been compared.
#[derive(Clone)]
pub struct Seed {
    /// Its file name.
    pub name: String,
    /// Procedure number and message: the input of a fuzz body.
    pub input: Vec<u8>,
}

/// The bytes of a message in the order of its RFC: `7` is a word, `q7` a hyper, `"abc"` a string. `'0aff` is
/// opaque data in hexadecimal with its length, `=0aff` without.
pub fn wire(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for token in text.split_whitespace() {
        match token.split_at(1) {
            ("q", number) => bytes.extend(number.parse::<u64>().unwrap().to_be_bytes()),
            ("\"", string) => opaque(&mut bytes, string.strip_suffix('"').unwrap().as_bytes()),
            ("'", digits) => opaque(&mut bytes, &hex(digits)),
            ("=", digits) => bytes.extend(hex(digits)),
            _ => bytes.extend(token.parse::<u32>().unwrap().to_be_bytes()),
        }
    }
    bytes
}

fn opaque(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend(content);
    bytes.extend(vec![0; (4 - content.len() % 4) % 4]);
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Checks that arguments of `C` encode to exactly these bytes and decode from them.
pub fn args<C: Call>(value: &C::Args, text: &str) -> Seed {
    assert_eq!(&xdr::from_bytes::<C::Args>(wire(text).into()).unwrap(), value, "{} arguments", C::NAME);
    compare::<C>(&xdr::to_bytes(value).unwrap(), text, "args")
}

/// Checks that results of `C` encode to exactly these bytes and decode from them.
pub fn results<C: Call>(value: &C::Results, text: &str) -> Seed {
    assert_eq!(&xdr::from_bytes::<C::Results>(wire(text).into()).unwrap(), value, "{} results", C::NAME);
    let case = if wire(text).get(..4) == Some(&[0; 4]) { "ok" } else { "other" };
    compare::<C>(&xdr::to_bytes(value).unwrap(), text, case)
}

fn compare<C: Call>(encoded: &[u8], text: &str, case: &str) -> Seed {
    assert_eq!(encoded, wire(text), "{} {case}", C::NAME);
    let name = format!("v{}-{}-{case}", C::VERSION, C::NAME.to_lowercase());
    Seed { name, input: [&[C::NUMBER as u8], encoded].concat() }
}

/// A string as opaque data of any bound.
pub fn text<const MAX: usize>(string: &'static str) -> xdr::Opaque<MAX> {
    xdr::Opaque::new(string.as_bytes()).unwrap()
}
