#!/bin/bash
# init of a guest. The host's whole tree is the root, read-only; what must be writable is a tmpfs. The kernel hands the words
# LAB_NAME, LAB_ADDRESS, LAB_GATEWAY and LAB_DIRECTORY of its command line over as environment, and LAB_MODULES where the kernel
# is not the host's own package.
export PATH=/run/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp LC_ALL=C
fail() { echo "LAB-FAILED $*"; echo o >/proc/sysrq-trigger; sleep 5; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm

mount -t tmpfs mnt /mnt || fail "no /mnt"
mkdir /mnt/lab && mount -t hostfs lab /mnt/lab -o "$LAB_DIRECTORY" && mount -o remount,ro /mnt/lab || fail "no hostfs of $LAB_DIRECTORY"
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
mkdir -p /run/lock /run/rpcbind /run/sendsigs.omit.d
mkdir /tmp/nfs-state && cp -a /var/lib/nfs/. /tmp/nfs-state/ && mount --bind /tmp/nfs-state /var/lib/nfs
mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm

# Modules: Debian keeps a guest's where modprobe does not look; the kernel's own calls come through the same wrapper.
release=$(uname -r)
mkdir -p /run/lab/bin /run/lab/lib/modules
modules=/usr/lib/uml/modules
if [ -n "$LAB_MODULES" ]; then
    # By a mount of its own: the guest's /tmp hides the host's.
    modules=/mnt/modules
    mkdir $modules && mount -t hostfs modules $modules -o "$LAB_MODULES" && mount -o remount,ro $modules || fail "no hostfs of $LAB_MODULES"
fi
ln -s "$modules/$release" /run/lab/lib/modules/
ln -s . /run/lab/usr
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/lab "$@"\n' >/run/lab/bin/modprobe
chmod +x /run/lab/bin/modprobe
echo /run/lab/bin/modprobe >/proc/sys/kernel/modprobe

# No DNS: a lookup that waits for nobody makes rpc.mountd answer seconds late.
: >/run/lab/resolv.conf
printf '127.0.0.1 localhost\n%s %s\n' "$LAB_ADDRESS" "$LAB_NAME" >/run/lab/hosts
mount --bind /run/lab/resolv.conf /etc/resolv.conf 2>/dev/null
mount --bind /run/lab/hosts /etc/hosts

hostname "$LAB_NAME"
ip link set lo up
ip link set vec0 up && ip addr add "$LAB_ADDRESS/24" dev vec0 && ip route add default via "$LAB_GATEWAY" || fail "no network"

cd /tmp || fail "no /tmp"
/mnt/lab/lab-hand network vec0 "$LAB_GATEWAY" &
/mnt/lab/lab-hand agent "$LAB_ADDRESS:7"
fail "the agent ended"
