# A directory of 2,000 files: made, listed whole, read, thinned out, removed.
mkdir d
for i in $(seq 1000 2999); do echo "$i" >"d/file-$i"; done
is "$(ls d | wc -l)" 2000
forget
is "$(ls d | sha256sum)" "$(seq -f 'file-%g' 1000 2999 | sha256sum)"
is "$(ls -l d | grep -c '^-rw-r--r-- 1 ')" 2000
is "$(cat d/* | sha256sum)" "$(seq 1000 2999 | sha256sum)"
rm d/file-*[13579]
is "$(ls d | wc -l)" 1000
forget
is "$(ls d | head -1) $(ls d | tail -1) $(ls d | wc -l)" "file-1000 file-2998 1000"
rm -r d
fails stat d
