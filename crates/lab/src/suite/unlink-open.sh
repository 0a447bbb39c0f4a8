# A file without a name lives as long as it is open.
head -c 300000 /dev/zero | tr '\0' q >f
exec 3<f
exec 4<>f
rm f
fails stat f
is "$(head -c 10 <&3)" qqqqqqqqqq
printf WRITTEN >&4
is "$(head -c 7 </proc/self/fd/4)" WRITTEN
echo other >f # the name is free for another file
is "$(cat f)" other
is "$(wc -c <&3)" 299990
exec 3<&-
exec 4<&-
is "$(cat f)" other
rm f
is "$(ls -A)" "" # not even a .nfs file is left
mkdir d
echo x >d/x
exec 3<d/x
rm d/x
is "$(cat <&3)" x
exec 3<&-
rmdir d
