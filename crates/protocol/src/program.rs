//! A program of ONC RPC as a table, like the `program` definition at the end of each RFC.

use std::fmt::Debug;

use xdr::{Decode, Encode};

/// One procedure of one version of one program, as a type without values.
pub trait Call: Send + Sync + 'static {
    /// The program's number.
    const PROGRAM: u32;
    /// Its version.
    const VERSION: u32;
    /// The procedure's number.
    const NUMBER: u32;
    /// Its name in the RFC without the prefix: `READDIRPLUS`.
    const NAME: &'static str;
    /// Its arguments.
    type Args: Encode + Decode + Debug + PartialEq + Send + Sync;
    /// Its results.
    type Results: Encode + Decode + Debug + PartialEq + Send + Sync;
}

/// An operation on the types of a procedure whose number is known only at run time.
pub trait Visit {
    /// The result of the operation.
    type Output;
    /// Runs the operation for one procedure.
    fn visit<C: Call>(self) -> Self::Output;
}

/// A number without a procedure in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownProcedure(pub u32);

/// Generates code from the table of a program's procedures: `PROGRAM`, `VERSION`, `Procedure`, and a [`Call`]
/// type for each in the module `call`.
macro_rules! program {
    ($program:literal, $version:literal; $($(#[$doc:meta])* $name:ident = $number:literal, $text:literal,
     $args:ty => $results:ty;)*) => {
        /// The number of the program.
        pub const PROGRAM: u32 = $program;
        /// The version of the program.
        pub const VERSION: u32 = $version;

        /// The procedures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Procedure {
            $($(#[$doc])* $name = $number,)*
        }

        impl Procedure {
            /// All procedures, in the order of their numbers.
            pub const ALL: &'static [Procedure] = &[$(Procedure::$name),*];

            /// Its name in the RFC without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Procedure::$name => $text),* }
            }

            /// Runs a visitor with its types.
            pub fn visit<V: $crate::Visit>(self, visitor: V) -> V::Output {
                match self { $(Procedure::$name => visitor.visit::<call::$name>()),* }
            }
        }

        impl TryFrom<u32> for Procedure {
            type Error = $crate::UnknownProcedure;
            fn try_from(number: u32) -> Result<Procedure, $crate::UnknownProcedure> {
                match number {
                    $($number => Ok(Procedure::$name),)*
                    other => Err($crate::UnknownProcedure(other)),
                }
            }
        }

        /// The procedures as types.
        pub mod call {
            #[allow(unused_imports, reason = "not every program has arguments of its own")]
            use super::*;
            $(
                $(#[$doc])*
                #[derive(Debug)]
                pub enum $name {}

                impl $crate::Call for $name {
                    const PROGRAM: u32 = $program;
                    const VERSION: u32 = $version;
                    const NUMBER: u32 = $number;
                    const NAME: &'static str = $text;
                    type Args = $args;
                    type Results = $results;
                }
            )*
        }
    };
}

pub(crate) use program;
