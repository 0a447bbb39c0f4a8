# One gibibyte of text that repeats nowhere: written, and read back with cold caches.
text() { seq 100000000 207374181; printf 'end\n'; }
since=$(date +%s%N)
rate() { echo "$1 $((1073741824 * 1000 / ($(date +%s%N) - since))) MB/s"; since=$(date +%s%N); }
text | dd of=big bs=1M iflag=fullblock conv=fsync status=none
wrote=$(rate wrote)
is "$(stat -c %s big)" 1073741824
forget
since=$(date +%s%N)
cat big >/dev/null
read=$(rate read)
forget
text | cmp - big
# A stretch in the middle, alone.
forget
is "$(dd if=big bs=1000000 skip=700 count=3 status=none | sha256sum)" "$(seq 170000000 170299999 | sha256sum)"
rm big
echo "# $wrote, $read"
