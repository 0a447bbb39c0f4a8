# Over what exists, between directories, directories themselves; what was open stays what it was.
echo one >a
echo two >b
inode=$(stat -c %i a)
mv a b
is "$(cat b) $(stat -c %i b)" "one $inode"
fails stat a
mkdir d1 d2
mv b d1/c
mv d1/c d2/c
is "$(cat d2/c)" one
is "$(ls d1)" ""
mkdir d1/sub
echo x >d1/sub/x
mv d1/sub d2/moved
is "$(cat d2/moved/x)" x
is "$(stat -c %h d1) $(stat -c %h d2)" "2 3"
mkdir empty full
touch full/f
mv -T d1 empty
is "$(ls empty)" ""
fails mv -T empty full
fails mv d2 d2/moved
touch plain
fails mv -T plain full
fails mv -T full plain
mv plain plain2
mv plain2 plain
is "$(ls)" "$(printf 'd2\nempty\nfull\nplain')"
# An editor's save, many times over.
for i in $(seq 50); do
    echo "version $i" >doc.new
    mv doc.new doc
    read -r version <doc
    is "$version" "version $i"
done
forget
is "$(cat doc) $(cat d2/moved/x)" "version 50 x"
# The old file, still open, has its content.
exec 3<doc
echo fresh >doc.new
mv doc.new doc
is "$(cat <&3)" "version 50"
is "$(cat doc)" fresh
exec 3<&-
