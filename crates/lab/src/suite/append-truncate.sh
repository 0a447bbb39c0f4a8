# Sizes that grow and shrink, at once and after the caches are gone.
for i in $(seq 200); do echo "line $i" >>log; done
is "$(wc -l <log)" 200
forget
is "$(tail -1 log)" "line 200"
is "$(sha256sum <log)" "$(for i in $(seq 200); do echo "line $i"; done | sha256sum)"
truncate -s 14 log
is "$(cat log)" "$(printf 'line 1\nline 2')"
truncate -s 20 log
is "$(od -An -tx1 -j14 log | tr -d ' \n')" 000000000000
echo end >>log
forget
is "$(stat -c %s log)" 24
is "$(tail -c 4 log)" end
: >log
is "$(stat -c %s log)" 0
# Writing in the middle changes the middle only.
head -c 100000 /dev/zero | tr '\0' a >middle
printf XYZ | dd of=middle bs=1 seek=50000 conv=notrunc status=none
forget
is "$(stat -c %s middle)" 100000
is "$(dd if=middle bs=1 skip=49999 count=5 status=none)" aXYZa
is "$(tr -d a <middle)" XYZ
