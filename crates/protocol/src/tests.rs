//! Byte-exact messages, which are also the seeds of the fuzz targets, and properties of all other messages.

mod locking;
mod nfs2;
mod nfs3;
mod nfs4;
mod nqnfs;
mod others;
mod properties;
mod seeds;
mod wire;
