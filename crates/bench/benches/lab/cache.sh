# In a guest: the kernel's own cache (fscache with cachefiles) on the ext4 image /dev/ubda at /mnt/cache.
modprobe cachefiles
mkdir -p /mnt/cache
mount -t ext4 -o user_xattr /dev/ubda /mnt/cache
mkdir -p /mnt/cache/fscache
printf 'dir /mnt/cache/fscache\ntag lab\nbrun 10%%\nbcull 7%%\nbstop 3%%\nfrun 10%%\nfcull 7%%\nfstop 3%%\n' >/run/lab/cachefilesd.conf
cachefilesd -f /run/lab/cachefilesd.conf -s
sleep 1
