//! COMPOUND, for clients and servers (RFC 8881, section 16.2).

use std::fmt;

use xdr::{Decode, Decoder, Encode, Encoder, Error, List, Xdr};

use super::{ArgOp, Failure, OPERATIONS_MAX, Op, OpResult, Operation, Outcomes, ResOp, Status, Tag};

/// The start of `COMPOUND4args`. [`CompoundHeader::next`] decodes the operations that follow.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CompoundHeader {
    /// The reply repeats it.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// Number of operations left. It is not bounded and may be more than the message contains.
    pub operations: u32,
}

/// An operation whose arguments could not be decoded: BADXDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadArguments<O = Operation> {
    /// The operation; illegal if even its number is missing.
    pub operation: O,
    /// The error of the decoder.
    pub error: Error,
}

impl CompoundHeader {
    /// The next operation; `None` after the last. An operation that the minor version does not have is
    /// [`ArgOp::Illegal`]. Nothing follows that or an error, because the start of the next operation is
    /// unknown.
    pub fn next(&mut self, decoder: &mut Decoder) -> Option<Result<ArgOp, BadArguments>> {
        self.operations = self.operations.checked_sub(1)?;
        let op = self.decode_op(decoder);
        if matches!(op, Err(_) | Ok(ArgOp::Illegal(_))) {
            self.operations = 0;
        }
        Some(op)
    }

    fn decode_op(&self, decoder: &mut Decoder) -> Result<ArgOp, BadArguments> {
        let bad = |operation| move |error| BadArguments { operation, error };
        let number = decoder.u32().map_err(bad(Operation::Illegal))?;
        match Operation::from_number(number).filter(|operation| operation.is_known_in(self.minorversion)) {
            Some(operation) => ArgOp::decode_args(operation, decoder).map_err(bad(operation)),
            None => Ok(ArgOp::Illegal(number)),
        }
    }
}

/// The complete `COMPOUND4args`.
#[derive(Clone, Debug, Default, PartialEq, Xdr)]
pub struct CompoundArgs {
    /// The reply repeats it.
    pub tag: Tag,
    /// Minor version.
    pub minorversion: u32,
    /// `argarray`
    pub argarray: List<ArgOp, OPERATIONS_MAX>,
}

impl CompoundArgs {
    /// Makes a compound of these operations without a tag; `None` if there are too many.
    pub fn new(minorversion: u32, operations: Vec<ArgOp>) -> Option<CompoundArgs> {
        Some(CompoundArgs { tag: Tag::default(), minorversion, argarray: List::new(operations)? })
    }
}

/// The start of `COMPOUND4res`; `results` values of [`ResOp`] follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompoundResHeader {
    /// The status of the last operation.
    pub status: Result<(), Status>,
    /// As in the request.
    pub tag: Tag,
    /// Number of results.
    pub results: u32,
}

impl Encode for CompoundResHeader {
    fn encode(&self, encoder: &mut Encoder) {
        encode_status(self.status, encoder);
        self.tag.encode(encoder);
        encoder.u32(self.results);
    }
}

impl Decode for CompoundResHeader {
    fn decode(decoder: &mut Decoder) -> Result<CompoundResHeader, Error> {
        Ok(CompoundResHeader {
            status: decode_status(decoder)?,
            tag: Tag::decode(decoder)?,
            results: decoder.length(OPERATIONS_MAX)? as u32,
        })
    }
}

/// The complete `COMPOUND4res` or `CB_COMPOUND4res`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompoundRes<R = ResOp> {
    /// The status of the last operation.
    pub status: Result<(), Status>,
    /// As in the request.
    pub tag: Tag,
    /// `resarray`
    pub resarray: List<R, OPERATIONS_MAX>,
}

impl<R: Encode> Encode for CompoundRes<R> {
    fn encode(&self, encoder: &mut Encoder) {
        encode_status(self.status, encoder);
        self.tag.encode(encoder);
        self.resarray.encode(encoder);
    }
}

impl<R: Decode> Decode for CompoundRes<R> {
    fn decode(decoder: &mut Decoder) -> Result<CompoundRes<R>, Error> {
        Ok(CompoundRes {
            status: decode_status(decoder)?,
            tag: Tag::decode(decoder)?,
            resarray: List::decode(decoder)?,
        })
    }
}

impl<R: Outcomes> CompoundRes<R> {
    /// The results, to take one after the other.
    pub fn into_results(self) -> Results<R> {
        Results { status: self.status, rest: self.resarray.into_vec().into_iter() }
    }
}

/// Results of a compound that have not been taken yet.
#[derive(Clone, Debug)]
pub struct Results<R = ResOp> {
    status: Result<(), Status>,
    rest: std::vec::IntoIter<R>,
}

impl<R: Outcomes> Results<R> {
    /// The status of the compound.
    pub fn status(&self) -> Result<(), Status> {
        self.status
    }

    /// The next result, of any operation.
    pub fn next_result(&mut self) -> Option<R> {
        self.rest.next()
    }

    /// The success result of the next operation, which must be `O`.
    pub fn take<O: Op<ResOp = R>>(&mut self) -> Result<O::Ok, CompoundError<R::Operation>> {
        self.result::<O>()?
            .map_err(|failure| CompoundError::Failed { operation: O::OPERATION, status: failure.status() })
    }

    /// The result of the next operation, which must be `O`, including the body of a failure.
    pub fn result<O: Op<ResOp = R>>(&mut self) -> Result<OpResult<O>, CompoundError<R::Operation>> {
        let Some(next) = self.rest.next() else {
            return Err(match self.status {
                Err(status) => CompoundError::Failed { operation: O::OPERATION, status },
                Ok(()) => CompoundError::Unexpected { expected: O::OPERATION, received: None },
            });
        };
        let (received, status) = (next.operation(), next.status());
        O::result(next).ok_or(match status {
            Err(status @ Status::OpIllegal) => CompoundError::Failed { operation: O::OPERATION, status },
            _ => CompoundError::Unexpected { expected: O::OPERATION, received: Some(received) },
        })
    }
}

/// Why a result could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompoundError<O = Operation> {
    /// An operation failed.
    Failed {
        /// The operation.
        operation: O,
        /// The error.
        status: Status,
    },
    /// The results do not match the operations that were sent.
    Unexpected {
        /// The operation that was sent.
        expected: O,
        /// The operation in the reply; `None` if there is none.
        received: Option<O>,
    },
}

impl<O> CompoundError<O> {
    /// The status, if an operation failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            CompoundError::Failed { status, .. } => Some(*status),
            CompoundError::Unexpected { .. } => None,
        }
    }
}

impl<O: fmt::Display> fmt::Display for CompoundError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompoundError::Failed { operation, status } => write!(f, "{operation}: {status}"),
            CompoundError::Unexpected { expected, received: Some(received) } => {
                write!(f, "a result of {received} where {expected} was asked for")
            }
            CompoundError::Unexpected { expected, received: None } => write!(f, "no result of {expected}"),
        }
    }
}

impl<O: fmt::Debug + fmt::Display> std::error::Error for CompoundError<O> {}

fn encode_status(status: Result<(), Status>, encoder: &mut Encoder) {
    encoder.u32(status.err().map_or(0, u32::from));
}

fn decode_status(decoder: &mut Decoder) -> Result<Result<(), Status>, Error> {
    Ok(match decoder.u32()? {
        0 => Ok(()),
        status => Err(Status::from(status)),
    })
}
