# A machine with systemd, in namespaces of this guest: a copy of the host's tree in memory, without the host's
# units. It shares the guest's network. The lab's directory is /mnt/lab, and the package is not installed yet.
root=/mnt/site/root
modprobe overlay
modprobe fuse
mkdir -p /mnt/site && mount -t tmpfs site /mnt/site
mkdir /mnt/site/upper /mnt/site/work $root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/site/upper,workdir=/mnt/site/work $root
mkdir -p /sys/fs/cgroup
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup /sys/fs/cgroup

rm -rf $root/etc/systemd/system && mkdir -p $root/etc/systemd/system $root/mnt/lab
ln -s /lib/systemd/system/multi-user.target $root/etc/systemd/system/default.target
: >$root/etc/fstab
: >$root/etc/machine-id
# The guest has a network and needs no other service.
for unit in getty.target console-getty.service systemd-udevd.service systemd-logind.service rpcbind.service \
    rpcbind.socket nfs-server.service nfs-client.target nfs-ganesha.service etcd.service krb5-kdc.service \
    krb5-admin-server.service systemd-networkd.service systemd-resolved.service networking.service; do
    ln -sf /dev/null $root/etc/systemd/system/$unit
done

cat >/tmp/boot.sh <<'BOOT'
root=/mnt/site/root
mount --make-rprivate /
mount --rbind /dev $root/dev
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --bind /mnt/lab $root/mnt/lab
for directory in run tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $root/$directory; done
cd $root && mkdir old && pivot_root . old && cd / && umount -l /old
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console
BOOT
# The new cgroup namespace begins at the cgroup of the process that makes it.
mkdir -p /sys/fs/cgroup/site && echo $$ >/sys/fs/cgroup/site/cgroup.procs
setsid unshare --mount --pid --ipc --uts --cgroup --fork bash /tmp/boot.sh >/tmp/systemd.log 2>&1 </dev/null &
for _ in $(seq 300); do
    systemd=$(pgrep -x systemd || true)
    [ -n "$systemd" ] && state=$(nsenter -t "${systemd%%$'\n'*}" -a systemctl is-system-running 2>&1 || true)
    # Units of the host that do not like it here are no matter of the package.
    case "${state:-}" in running | degraded) break ;; esac
    sleep 0.2
done
case "${state:-}" in running | degraded) ;; *) echo "systemd is $state"; tail -30 /tmp/systemd.log; exit 1 ;; esac
cat >/run/lab/bin/site <<'SITE'
#!/bin/sh
# Runs a script on the machine with systemd.
exec nsenter -t "$(pgrep -xo systemd)" -a env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -ec "$1"
SITE
chmod +x /run/lab/bin/site
