//! Members of a cluster, and which of them runs which virtual server.

pub mod store;
