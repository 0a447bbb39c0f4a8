# In a guest: mounts the origin $1 with the options $2, and the kernel's server exports the mount.
modprobe nfsd
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /mnt/origin
mount -t nfs -o "$2" "$1" /mnt/origin
: >/run/lab/nfs.conf
mount --bind /run/lab/nfs.conf /etc/nfs.conf
rpcbind -w
printf '/mnt/origin *(rw,async,no_subtree_check,no_root_squash,insecure,fsid=0)\n' >/run/lab/exports
mount --bind /run/lab/exports /etc/exports
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -ar
rpc.mountd -p 20048
until ss -ltn | grep -q ':20048 '; do sleep 0.05; done
rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 4
echo Y >/proc/fs/nfsd/v4_end_grace || true
