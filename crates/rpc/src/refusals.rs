//! The calls that this process has refused, by reason. All servers of the process count together.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::{AUTH_TOOWEAK, Refusal};

/// The reasons, in the order of their counts.
const REASONS: [&str; 8] = [
    "program_unavailable",
    "program_mismatch",
    "procedure_unavailable",
    "garbage_arguments",
    "system_error",
    "rpc_mismatch",
    // The export admits this client only with a stronger flavor, or not at all.
    "too_weak",
    "credential",
];

static COUNTS: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];

/// A call was refused.
pub(crate) fn count(refusal: Refusal) {
    let reason = match refusal {
        Refusal::ProgramUnavailable => 0,
        Refusal::ProgramMismatch { .. } => 1,
        Refusal::ProcedureUnavailable => 2,
        Refusal::GarbageArguments => 3,
        Refusal::SystemError => 4,
        Refusal::RpcMismatch => 5,
        Refusal::Auth(AUTH_TOOWEAK) => 6,
        Refusal::Auth(_) => 7,
    };
    COUNTS[reason].fetch_add(1, Ordering::Relaxed);
}

/// How many calls were refused since the start of the process, by reason.
pub fn refused() -> impl Iterator<Item = (&'static str, u64)> {
    REASONS.into_iter().zip(COUNTS.iter().map(|count| count.load(Ordering::Relaxed)))
}
