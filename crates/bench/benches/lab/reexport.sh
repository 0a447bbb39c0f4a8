# In a guest: mounts the origin $1 with the options $2 and exports what it has mounted, as its version 4 root.
if [ -e /proc/fs/nfsd/threads ]; then
    if mountpoint -q /mnt/origin; then
        rpc.nfsd 0
        exportfs -ua
        umount /mnt/origin
    fi
    echo 3 >/proc/sys/vm/drop_caches
else
    modprobe nfsd
    mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /mnt/origin
    : >/run/lab/nfs.conf
    mount --bind /run/lab/nfs.conf /etc/nfs.conf
    rpcbind -w
    rpc.statd --no-notify 2>/dev/null || true
    printf '/mnt/origin *(rw,async,wdelay,no_subtree_check,no_root_squash,insecure,fsid=0)\n' >/run/lab/exports
    mount --bind /run/lab/exports /etc/exports
    echo 15 >/proc/fs/nfsd/nfsv4leasetime
    echo 15 >/proc/fs/nfsd/nfsv4gracetime
    rpc.mountd -p 20048
fi
mount -t nfs -o "$2" "$1" /mnt/origin
exportfs -ar
rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 8
echo Y >/proc/fs/nfsd/v4_end_grace || true
