//! The configuration of a realm: krb5.conf and kdc.conf.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Name of the realm.
pub const REALM: &str = "LAB.TEST";
/// How far clocks may be apart: Kerberos's default.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// krb5.conf: nothing is asked of DNS. `directory` has the caches and keytabs that are the default.
pub(super) fn krb5_conf(kdc: SocketAddr, directory: Option<&Path>, skew: Duration) -> String {
    let defaults = directory.map(|directory| {
        let directory = directory.display();
        format!(
            "    default_ccache_name = FILE:{directory}/default.tickets\n\
             \x20   default_keytab_name = FILE:{directory}/default.keytab\n\
             \x20   default_client_keytab_name = FILE:{directory}/default.client.keytab\n\
             \x20   default_rcache_name = file2:{directory}/replays\n"
        )
    });
    format!(
        "[libdefaults]\n\
         \x20   default_realm = {REALM}\n\
         \x20   dns_lookup_realm = false\n\
         \x20   dns_lookup_kdc = false\n\
         \x20   dns_canonicalize_hostname = false\n\
         \x20   rdns = false\n\
         \x20   clockskew = {}\n\
         {}\
         [realms]\n\
         \x20   {REALM} = {{\n\
         \x20       kdc = {kdc}\n\
         \x20   }}\n",
        skew.as_secs(),
        defaults.unwrap_or_default()
    )
}

/// kdc.conf: the database and the log are in `directory`.
pub(super) fn kdc_conf(kdc: SocketAddr, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "[kdcdefaults]\n\
         \x20   kdc_listen = {kdc}\n\
         \x20   kdc_tcp_listen = {kdc}\n\
         [realms]\n\
         \x20   {REALM} = {{\n\
         \x20       database_name = {directory}/principal\n\
         \x20       key_stash_file = {directory}/stash\n\
         \x20       acl_file = {directory}/kadm5.acl\n\
         \x20       max_life = 10h\n\
         \x20   }}\n\
         [logging]\n\
         \x20   kdc = FILE:{directory}/kdc.log\n\
         \x20   admin_server = FILE:{directory}/kadmin.log\n\
         \x20   default = FILE:{directory}/kerberos.log\n"
    )
}

/// The variables that lead Kerberos to the realm in `directory`.
pub(super) fn environment(directory: &Path) -> Vec<(&'static str, String)> {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    vec![("KRB5_CONFIG", path("krb5.conf")), ("KRB5_KDC_PROFILE", path("kdc.conf"))]
}
