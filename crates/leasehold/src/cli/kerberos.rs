//! The options of Kerberos on the side of the server.

use std::path::PathBuf;

use clap::Args;

/// The Kerberos options.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Kerberos, as in RFC 2203")]
pub struct Kerberos {
    /// Keytab with the key of nfs/HOST, for `--sec krb5` and the like [default: that of krb5.conf,
    /// /etc/krb5.keytab]
    #[arg(long, value_name = "FILE")]
    pub keytab: Option<PathBuf>,
}
