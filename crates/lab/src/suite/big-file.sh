# One gibibyte that repeats nowhere: written, and read back with cold caches, whole and in part.
bytes=$((1 << 30))
pattern() { /mnt/lab/lab-hand pattern "$@"; }
rate() { echo "$1 $((bytes * 1000 / ($(date +%s%N) - since))) MB/s"; }
since=$(date +%s%N)
pattern write big 0 $bytes 7
wrote=$(rate wrote)
is "$(stat -c %s big)" $bytes
forget
since=$(date +%s%N)
pattern check big 0 $bytes 7
read=$(rate read)
# A stretch in the middle, alone; then changed, alone.
forget
pattern check big 700000000 3000000 7
pattern write big 500000001 2000003 8
forget
pattern check big 499000000 1000001 7
pattern check big 500000001 2000003 8
pattern check big 502000004 1000000 7
is "$(stat -c %s big)" $bytes
rm big
echo "# $wrote, $read"
