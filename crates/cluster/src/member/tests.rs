//! Sequences by hand.
