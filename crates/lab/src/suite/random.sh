# Random reads, writes and truncations of files against a model. A failure tells its seed.
seed=$((RANDOM * 32768 + RANDOM + 1))
/mnt/lab/lab-hand exercise one 5000 $seed
/mnt/lab/lab-hand exercise two 2000 $((seed + 1)) &
/mnt/lab/lab-hand exercise three 2000 $((seed + 2))
wait $!
echo "# seed $seed"
