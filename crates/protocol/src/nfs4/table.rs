//! Operations as a table: what `nfs_argop4` and `nfs_resop4` are, of the fore channel and of the callbacks alike.

use std::fmt;

use xdr::{Decode, Decoder, Encode, Encoder, Error};

use super::Status;

/// What an operation gives if it fails: a status, and for a few operations something with it.
pub trait Failure: Encode + From<Status> {
    /// The status.
    fn status(&self) -> Status;
    /// Decodes what comes with the status.
    fn decode(status: Status, decoder: &mut Decoder) -> Result<Self, Error>;
}

impl Failure for Status {
    fn status(&self) -> Status {
        *self
    }

    fn decode(status: Status, _: &mut Decoder) -> Result<Status, Error> {
        Ok(status)
    }
}

/// One operation: a type that is never a value.
pub trait Op {
    /// All results of its program.
    type ResOp: Outcomes;
    /// All arguments of its program.
    type ArgOp;
    /// Which it is.
    const OPERATION: <Self::ResOp as Outcomes>::Operation;
    /// What it is given.
    type Args;
    /// What it gives.
    type Ok;
    /// What it gives if it fails.
    type Failure: Failure;
    /// The operation to put into a compound.
    fn with(args: Self::Args) -> Self::ArgOp;
    /// The result, if it is this operation's.
    fn result(result: Self::ResOp) -> Option<OpResult<Self>>;
}

/// How an operation went.
pub type OpResult<O> = Result<<O as Op>::Ok, <O as Op>::Failure>;

/// Results of any operation of a program.
pub trait Outcomes: Encode + Decode {
    /// Which operations there are.
    type Operation: Copy + Eq + fmt::Debug + fmt::Display;
    /// Whose result it is.
    fn operation(&self) -> Self::Operation;
    /// How it went.
    fn status(&self) -> Result<(), Status>;
}

/// Writes a status and what comes with it.
pub(super) fn encode_result<T: Encode, F: Failure>(result: &Result<T, F>, encoder: &mut Encoder) {
    match result {
        Ok(ok) => {
            encoder.u32(0);
            ok.encode(encoder);
        }
        Err(failure) => failure.encode(encoder),
    }
}

/// Reads a status and what comes with it.
pub(super) fn decode_result<T: Decode, F: Failure>(decoder: &mut Decoder) -> Result<Result<T, F>, Error> {
    match decoder.u32()? {
        0 => Ok(Ok(T::decode(decoder)?)),
        status => Ok(Err(F::decode(Status::from(status), decoder)?)),
    }
}

/// Writes what follows from the table of operations: their numbers, arguments and results, and a type for each in a
/// module.
macro_rules! operations {
    ($(#[$enum_doc:meta])* $operation:ident, $argop:ident, $resop:ident, $module:ident;
     $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $minor:literal,
     $args:ty => Result<$ok:ty, $failure:ty>;)*) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $operation {
            $($(#[$doc])* $name = $number,)*
            /// A number that has no operation.
            Illegal = 10044,
        }

        impl $operation {
            /// All but the illegal one, in the order of their numbers.
            pub const ALL: &'static [$operation] = &[$($operation::$name),*];

            /// The operation with this number.
            pub const fn from_number(number: u32) -> Option<$operation> {
                match number {
                    $($number => Some($operation::$name),)*
                    10044 => Some($operation::Illegal),
                    _ => None,
                }
            }

            /// Its name in the RFC, less the prefix.
            pub const fn name(self) -> &'static str {
                match self {
                    $($operation::$name => $text,)*
                    $operation::Illegal => "ILLEGAL",
                }
            }

            /// The minor version that it came with.
            pub const fn minor(self) -> u32 {
                match self {
                    $($operation::$name => $minor,)*
                    $operation::Illegal => 0,
                }
            }
        }

        impl std::fmt::Display for $operation {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        /// An operation with its arguments.
        #[derive(Clone, Debug, PartialEq)]
        pub enum $argop {
            $($(#[$doc])* $name($args),)*
            /// A number that has no operation, or none in the minor version. What follows it cannot be read.
            Illegal(u32),
        }

        impl $argop {
            /// Which it is.
            pub const fn operation(&self) -> $operation {
                match self {
                    $($argop::$name(_) => $operation::$name,)*
                    $argop::Illegal(_) => $operation::Illegal,
                }
            }

            /// Decodes the arguments of an operation whose number has been decoded.
            pub fn decode_args(operation: $operation, decoder: &mut xdr::Decoder) -> Result<$argop, xdr::Error> {
                match operation {
                    $($operation::$name => Ok($argop::$name(xdr::Decode::decode(decoder)?)),)*
                    $operation::Illegal => Ok($argop::Illegal(operation as u32)),
                }
            }
        }

        impl xdr::Encode for $argop {
            fn encode(&self, encoder: &mut xdr::Encoder) {
                match self {
                    $($argop::$name(args) => {
                        encoder.u32($number);
                        args.encode(encoder);
                    })*
                    $argop::Illegal(number) => encoder.u32(*number),
                }
            }
        }

        /// Operations of all minor versions are known.
        impl xdr::Decode for $argop {
            fn decode(decoder: &mut xdr::Decoder) -> Result<$argop, xdr::Error> {
                let number = decoder.u32()?;
                match $operation::from_number(number) {
                    Some(operation) => $argop::decode_args(operation, decoder),
                    None => Ok($argop::Illegal(number)),
                }
            }
        }

        /// An operation with its results.
        #[derive(Clone, Debug, PartialEq)]
        pub enum $resop {
            $($(#[$doc])* $name(Result<$ok, $failure>),)*
            /// An operation that is none: `NFS4ERR_OP_ILLEGAL`.
            Illegal($crate::nfs4::Status),
        }

        impl $resop {
            /// The failure of an operation, with nothing to say but the status.
            pub fn failed(operation: $operation, status: $crate::nfs4::Status) -> $resop {
                match operation {
                    $($operation::$name => $resop::$name(Err(status.into())),)*
                    $operation::Illegal => $resop::Illegal(status),
                }
            }

            /// Which it is.
            pub const fn operation(&self) -> $operation {
                match self {
                    $($resop::$name(_) => $operation::$name,)*
                    $resop::Illegal(_) => $operation::Illegal,
                }
            }

            /// How it went.
            pub fn status(&self) -> Result<(), $crate::nfs4::Status> {
                match self {
                    $($resop::$name(Ok(_)) => Ok(()),
                    $resop::$name(Err(failure)) => Err($crate::nfs4::Failure::status(failure)),)*
                    $resop::Illegal(status) => Err(*status),
                }
            }
        }

        impl $crate::nfs4::Outcomes for $resop {
            type Operation = $operation;
            fn operation(&self) -> $operation {
                self.operation()
            }
            fn status(&self) -> Result<(), $crate::nfs4::Status> {
                self.status()
            }
        }

        impl xdr::Encode for $resop {
            fn encode(&self, encoder: &mut xdr::Encoder) {
                encoder.u32(self.operation() as u32);
                match self {
                    $($resop::$name(result) => $crate::nfs4::table::encode_result(result, encoder),)*
                    $resop::Illegal(status) => status.encode(encoder),
                }
            }
        }

        impl xdr::Decode for $resop {
            fn decode(decoder: &mut xdr::Decoder) -> Result<$resop, xdr::Error> {
                match decoder.u32()? {
                    $($number => Ok($resop::$name($crate::nfs4::table::decode_result(decoder)?)),)*
                    10044 => Ok($resop::Illegal(xdr::Decode::decode(decoder)?)),
                    value => Err(xdr::Error::Discriminant { name: stringify!($operation), value }),
                }
            }
        }

        /// The operations as types.
        pub mod $module {
            use super::*;
            $(
                $(#[$doc])*
                #[derive(Debug)]
                pub enum $name {}

                impl $crate::nfs4::Op for $name {
                    type ResOp = $resop;
                    type ArgOp = $argop;
                    const OPERATION: $operation = $operation::$name;
                    type Args = $args;
                    type Ok = $ok;
                    type Failure = $failure;
                    fn with(args: $args) -> $argop {
                        $argop::$name(args)
                    }
                    fn result(result: $resop) -> Option<Result<$ok, $failure>> {
                        match result {
                            $resop::$name(result) => Some(result),
                            _ => None,
                        }
                    }
                }
            )*
        }
    };
}

/// Writes a failure that has a body with one status and none with any other.
macro_rules! failure_with_body {
    ($(#[$doc:meta])* $name:ident: $(#[$each:meta])* $variant:ident($body:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$each])*
            $variant($body),
            /// Any other status.
            Other($crate::nfs4::Status),
        }

        /// The status that has a body gets an empty one.
        impl From<$crate::nfs4::Status> for $name {
            fn from(status: $crate::nfs4::Status) -> $name {
                match status {
                    $crate::nfs4::Status::$variant => $name::$variant(Default::default()),
                    other => $name::Other(other),
                }
            }
        }

        impl xdr::Encode for $name {
            fn encode(&self, encoder: &mut xdr::Encoder) {
                $crate::nfs4::Failure::status(self).encode(encoder);
                if let $name::$variant(body) = self {
                    body.encode(encoder);
                }
            }
        }

        impl $crate::nfs4::Failure for $name {
            fn status(&self) -> $crate::nfs4::Status {
                match self {
                    $name::$variant(_) => $crate::nfs4::Status::$variant,
                    $name::Other(status) => *status,
                }
            }

            fn decode(status: $crate::nfs4::Status, decoder: &mut xdr::Decoder) -> Result<$name, xdr::Error> {
                match status {
                    $crate::nfs4::Status::$variant => Ok($name::$variant(xdr::Decode::decode(decoder)?)),
                    other => Ok($name::Other(other)),
                }
            }
        }
    };
}

pub(crate) use failure_with_body;
pub(crate) use operations;
