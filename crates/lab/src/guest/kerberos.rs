//! A guest as a member of a Kerberos realm: its machine's keytab, rpc.gssd, and tickets of its users.

use crate::guest::Guest;
use crate::realm::Realm;
use std::fs;
use std::path::Path;

/// The name of the host in guests that are members of a realm. Its NFS server's principal is
/// [`Guest::SERVER_PRINCIPAL`].
const SERVER_NAME: &str = "server.lab.test";

/// Joins the realm. Mounts name the server by its address, and rpc.gssd looks up that address's name.
const JOIN_SH: &str = r#"
cp "$FROM".conf /run/lab/krb5.conf
install -m 600 "$FROM".keytab /run/lab/krb5.keytab
[ -e /etc/krb5.conf ] && mount --bind /run/lab/krb5.conf /etc/krb5.conf
export KRB5_CONFIG=/run/lab/krb5.conf
echo "$HOST $SERVER_NAME" >>/run/lab/hosts
modprobe rpcsec_gss_krb5
mkdir -p /run/rpc_pipefs
mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
setsid rpc.gssd -f $VERBOSE -k /run/lab/krb5.keytab -p /run/rpc_pipefs >/dev/console 2>&1 </dev/null &
# The kernel asks no rpc.gssd that has not opened this pipe.
until ls -l /proc/$!/fd | grep -q clntXX/gssd; do kill -0 $!; sleep 0.05; done
"#;

impl Guest {
    /// Principal of the NFS server on the host, as rpc.gssd in a guest asks for it.
    pub const SERVER_PRINCIPAL: &'static str = "nfs/server.lab.test";

    /// Joins a realm that was started at [`Lab::address`](crate::Lab::address): adds the principal
    /// `nfs/NAME` of the guest, gives the guest its keytab and krb5.conf, and starts rpc.gssd. Root's calls
    /// are made as that principal. rpc.gssd writes errors to the console, and everything if
    /// `LEASEHOLD_LAB_GSSD` is set.
    #[track_caller]
    pub fn join(&self, realm: &Realm) {
        let principal = format!("nfs/{}", self.name());
        realm.add_service(&principal);
        let (configuration, keytab) = (format!("{}.conf", self.name()), format!("{}.keytab", self.name()));
        let directory = self.lab().subdirectory("kerberos");
        let give = |name: &str, bytes: Vec<u8>| {
            let path = directory.join(name);
            fs::write(&path, bytes)
                .unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", path.display()));
        };
        give(&configuration, realm.client_configuration().into_bytes());
        give(&keytab, read(&realm.keytab(&[&principal])));
        let verbose = if std::env::var_os("LEASEHOLD_LAB_GSSD").is_some() { "-vv" } else { "" };
        self.sh(&format!(
            "FROM=/mnt/lab/kerberos/{}; HOST={}; SERVER_NAME={SERVER_NAME}; VERBOSE='{verbose}'\n{JOIN_SH}",
            self.name(),
            self.lab().address(),
        ));
    }

    /// Gives a user of the guest a ticket cache, such as one of [`Realm::tickets`], where rpc.gssd looks for
    /// it. It replaces an earlier one.
    #[track_caller]
    pub fn give_tickets(&self, uid: u32, tickets: &Path) {
        let name = format!("tickets.{uid}");
        let path = self.lab().subdirectory("kerberos").join(&name);
        fs::write(&path, read(tickets))
            .unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", path.display()));
        // Renamed in one step: rpc.gssd may be reading the old cache.
        self.sh(&format!(
            "install -m 600 -o {uid} /mnt/lab/kerberos/{name} /tmp/krb5cc_{uid}.new
             mv /tmp/krb5cc_{uid}.new /tmp/krb5cc_{uid}"
        ));
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("lab: cannot read {}: {error}", path.display()))
}
