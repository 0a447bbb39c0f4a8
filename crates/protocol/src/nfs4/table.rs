//! Operations as a table: `nfs_argop4` and `nfs_resop4`, and the corresponding types of callbacks.

use std::fmt;

use xdr::{Decode, Decoder, Encode, Encoder, Error};

use super::Status;

/// The failure of an operation: a status, and for a few operations a body.
pub trait Failure: Encode + From<Status> {
    /// The status.
    fn status(&self) -> Status;
    /// Decodes the body that follows the status.
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

/// One operation, as a type without values.
pub trait Op {
    /// All results of its program.
    type ResOp: Outcomes;
    /// All arguments of its program.
    type ArgOp;
    /// The operation.
    const OPERATION: <Self::ResOp as Outcomes>::Operation;
    /// Its arguments.
    type Args;
    /// Its results.
    type Ok;
    /// Its failure.
    type Failure: Failure;
    /// Makes an entry of a compound.
    fn with(args: Self::Args) -> Self::ArgOp;
    /// The result, if it belongs to this operation.
    fn result(result: Self::ResOp) -> Option<OpResult<Self>>;
}

/// The result of an operation.
pub type OpResult<O> = Result<<O as Op>::Ok, <O as Op>::Failure>;

/// Results of any operation of a program.
pub trait Outcomes: Encode + Decode {
    /// The operations of the program.
    type Operation: Copy + Eq + fmt::Debug + fmt::Display;
    /// The operation that the result belongs to.
    fn operation(&self) -> Self::Operation;
    /// The status of the operation.
    fn status(&self) -> Result<(), Status>;
}

/// Encodes a status and its body.
pub(super) fn encode_result<T: Encode, F: Failure>(result: &Result<T, F>, encoder: &mut Encoder) {
    match result {
        Ok(ok) => {
            encoder.u32(0);
            ok.encode(encoder);
        }
        Err(failure) => failure.encode(encoder),
    }
}

/// Decodes a status and its body.
pub(super) fn decode_result<T: Decode, F: Failure>(decoder: &mut Decoder) -> Result<Result<T, F>, Error> {
    match decoder.u32()? {
        0 => Ok(Ok(T::decode(decoder)?)),
        status => Ok(Err(F::decode(Status::from(status), decoder)?)),
    }
}

/// Generates code from the table of operations: their numbers, arguments and results, and a module with a
/// type for each.
macro_rules! operations {
    ($(#[$enum_doc:meta])* $operation:ident, $argop:ident, $resop:ident, $module:ident;
     $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $minor:literal,
     $args:ty => Result<$ok:ty, $failure:ty>;)*) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $operation {
            $($(#[$doc])* $name = $number,)*
            /// A number without an operation.
            Illegal = 10044,
        }

        impl $operation {
            /// All operations except the illegal one, in the order of their numbers.
            pub const ALL: &'static [$operation] = &[$($operation::$name),*];

            /// The operation with this number.
            pub const fn from_number(number: u32) -> Option<$operation> {
                match number {
                    $($number => Some($operation::$name),)*
                    10044 => Some($operation::Illegal),
                    _ => None,
                }
            }

            /// Its name in the RFC without the prefix.
            pub const fn name(self) -> &'static str {
                match self {
                    $($operation::$name => $text,)*
                    $operation::Illegal => "ILLEGAL",
                }
            }

            /// The first minor version that has it.
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
            /// A number without an operation, or without one in the minor version. The rest of the compound
            /// cannot be decoded.
            Illegal(u32),
        }

        impl $argop {
            /// The operation.
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

        /// Accepts operations of all minor versions.
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
            /// The result of an illegal operation: `NFS4ERR_OP_ILLEGAL`.
            Illegal($crate::nfs4::Status),
        }

        impl $resop {
            /// The failure of an operation with only a status.
            pub fn failed(operation: $operation, status: $crate::nfs4::Status) -> $resop {
                match operation {
                    $($operation::$name => $resop::$name(Err(status.into())),)*
                    $operation::Illegal => $resop::Illegal(status),
                }
            }

            /// The operation.
            pub const fn operation(&self) -> $operation {
                match self {
                    $($resop::$name(_) => $operation::$name,)*
                    $resop::Illegal(_) => $operation::Illegal,
                }
            }

            /// The status of the operation.
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

/// Generates a failure type that has a body with one status and none with any other.
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

        /// The status with a body gets the default body.
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
