//! NSM, the Network Status Monitor, version 1 (X/Open XNFS C702, chapter 11): hosts tell each other that
//! they have restarted, so that locks are released or reclaimed.

use xdr::{Opaque, Xdr};

use crate::program::program;

/// `SM_MAXSTRLEN`: the most bytes in the name of a host.
pub const NAME_MAX: usize = 1024;
/// `STAT_SUCC`: the monitor takes the host.
pub const STAT_SUCC: u32 = 0;
/// `STAT_FAIL`: the monitor does not take the host.
pub const STAT_FAIL: u32 = 1;

/// The name of a host.
pub type Name = Opaque<NAME_MAX>;

program! {
    100_024, 1;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Would the monitor take this host?
    Stat = 1, "STAT", Name => StatRes;
    /// Monitor a host for a program of this machine.
    Mon = 2, "MON", MonArgs => StatRes;
    /// Stop monitoring a host.
    Unmon = 3, "UNMON", MonId => u32;
    /// Stop monitoring all hosts of a program.
    UnmonAll = 4, "UNMON_ALL", MyId => u32;
    /// Act as after a crash.
    SimuCrash = 5, "SIMU_CRASH", () => ();
    /// A host has restarted.
    Notify = 6, "NOTIFY", StatChge => ();
}

/// `sm_stat_res`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct StatRes {
    /// [`STAT_SUCC`] or [`STAT_FAIL`].
    pub stat: u32,
    /// The state number of the monitor: odd while it runs.
    pub state: u32,
}

/// `my_id`: the program of this machine that is told.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MyId {
    /// The name of this machine.
    pub name: Name,
    /// Program.
    pub program: u32,
    /// Version.
    pub version: u32,
    /// Procedure.
    pub procedure: u32,
}

/// `mon_id`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MonId {
    /// The host to monitor.
    pub mon_name: Name,
    /// The program that is told.
    pub my_id: MyId,
}

/// `mon`: the arguments of MON.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MonArgs {
    /// Host and program.
    pub mon_id: MonId,
    /// Returned to the program.
    pub private: [u8; 16],
}

/// `stat_chge`: the arguments of NOTIFY.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct StatChge {
    /// The host that has restarted.
    pub mon_name: Name,
    /// Its state number now.
    pub state: u32,
}
