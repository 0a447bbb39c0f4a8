# Holes are zeros, cost nothing, and sizes beyond 32 bits hold.
truncate -s 100M holes
is "$(stat -c %s holes)" 104857600
printf A | dd of=holes bs=1 seek=1000000 conv=notrunc status=none
printf B | dd of=holes bs=1 seek=70000000 conv=notrunc status=none
forget
is "$(stat -c %s holes)" 104857600
[ "$(stat -c %b holes)" -lt 4096 ] # below 2 MiB
is "$(tr -d '\0' <holes)" AB
is "$(dd if=holes bs=1 skip=1000000 count=1 status=none)$(dd if=holes bs=1 skip=70000000 count=1 status=none)" AB
cp --sparse=always holes copy
cmp holes copy
forget
[ "$(stat -c %b copy)" -lt 16384 ] # cp sees holes in units of wsize, at most 1 MiB
cmp holes copy
# Five gigabytes, nearly all of it a hole.
truncate -s 5G wide
printf END | dd of=wide bs=1 seek=5368709117 conv=notrunc status=none
forget
is "$(stat -c %s wide)" 5368709120
is "$(tail -c 3 wide)" END
is "$(dd if=wide bs=1M skip=4500 count=4 status=none | tr -d '\0' | wc -c)" 0
truncate -s 2200000000 wide
is "$(stat -c %s wide)" 2200000000
is "$(tail -c 3 wide | od -An -tx1 | tr -d ' \n')" 000000
rm holes copy wide
