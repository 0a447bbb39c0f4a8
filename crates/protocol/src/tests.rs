//! Byte-exact messages, which are the seeds of the fuzz targets too, and what must hold of all others.

mod nfs2;
mod nfs3;
mod nfs4;
mod nqnfs;
mod others;
mod properties;
mod seeds;
mod wire;
