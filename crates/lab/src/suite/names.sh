# Bytes that are not UTF-8, the longest names, deep paths, what shells dislike.
latin=$(printf 'caf\xe9-\xff\xfe\x01')
echo bytes >"$latin"
is "$(ls | od -An -tx1 | tr -d ' \n')" 636166e92dfffe010a
is "$(cat "$latin")" bytes
forget
is "$(cat "$latin")" bytes
mv "$latin" plain
is "$(ls)" plain
mv plain "$latin"
rm "$latin"
long=$(printf 'n%.0s' $(seq 255))
echo longest >"$long"
forget
is "$(cat "$long")" longest
is "$(ls)" "$long"
fails touch "x$long"
wide=$(printf '\xc3\xa9%.0s' $(seq 127))x # 255 bytes in 128 characters
mkdir "$wide"
echo in >"$wide/$long"
is "$(cat "$wide/$long")" in
rm -r "$wide"
for name in ' ' '*' '-rf' $'new\nline' '"' "'" '\' '...' '~' '#x' 'a b'; do
    echo "$name" >"./$name"
    is "$(cat "./$name")" "$name"
done
is "$(ls -a | grep -c '')" 15 # eleven of those, one of them two lines, the long one, and the two dots
deep=.
for i in $(seq 40); do deep=$deep/level-$i; done
mkdir -p "$deep"
echo bottom >"$deep/file"
forget
is "$(cat "$deep/file")" bottom
