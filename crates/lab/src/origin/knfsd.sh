# In a guest: the kernel's own NFS server, versions 3 and 4, on the ext4 image /dev/ubda at /mnt/exp. MOUNT answers on port 20048.
modprobe nfsd
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /mnt/exp
mount -t ext4 /dev/ubda /mnt/exp
# The groups a call carries count, as on most systems; Debian's own file has mountd look them up instead.
: >/run/lab/nfs.conf
mount --bind /run/lab/nfs.conf /etc/nfs.conf
rpcbind -w
rpc.statd --no-notify 2>/dev/null || true
printf '/mnt/exp *(rw,sync,no_subtree_check,no_root_squash,insecure,fsid=0)\n' >/run/lab/exports
mount --bind /run/lab/exports /etc/exports
echo 15 >/proc/fs/nfsd/nfsv4leasetime
echo 15 >/proc/fs/nfsd/nfsv4gracetime
# The lock manager has a grace period of its own, which holds up locks of version 4 too: three seconds and not fifty.
modprobe lockd
echo 3 >/proc/sys/fs/nfs/nlm_timeout || true
echo 1 >/proc/sys/fs/nfs/nlm_grace_period || true
exportfs -ar
rpc.mountd -p 20048
# It lets its caller go before it is a session of its own, and what a script leaves in its group is killed.
until ss -ltn | grep -q ':20048 '; do sleep 0.05; done
