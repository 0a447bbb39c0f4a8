# A small program: built, run, rebuilt after a change, and not rebuilt without one.
have_tree
cp -a ../source-tree/tree work
cd work
make -s program
is "$(./program)" "$(cat ANSWER)"
is "$(make -s program)" ""
is "$(make program)" "make: 'program' is up to date."
touch src/m05.c
make program >/tmp/made
is "$(grep -c -- '-c -o' /tmp/made)" 1
forget
is "$(./program)" "$(cat ANSWER)"
make -s clean
fails stat build
