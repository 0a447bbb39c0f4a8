# Hard links and symbolic links.
echo shared >a
ln a b
mkdir d
ln a d/c
is "$(stat -c '%h %i' a)" "$(stat -c '%h %i' d/c)"
is "$(stat -c %h b)" 3
echo more >>d/c
is "$(cat a)" "$(printf 'shared\nmore')"
rm a
is "$(stat -c %h b)" 2
is "$(cat b)" "$(printf 'shared\nmore')"
fails ln b d/c
fails ln d e
forget
is "$(stat -c '%h %i' b)" "$(stat -c '%h %i' d/c)"
# Renaming one link over another of the same file does nothing, says POSIX; mv removes the first.
ln -s b sym
is "$(readlink sym)" b
is "$(cat sym)" "$(printf 'shared\nmore')"
ln -s nowhere dangling
fails cat dangling
is "$(stat -c %F dangling)" "symbolic link"
ln -s ../links/d dirlink
is "$(cat dirlink/c)" "$(cat b)"
ln -s loop2 loop1
ln -s loop1 loop2
fails cat loop1
long=$(printf 'x/%.0s' $(seq 500))end
ln -s "$long" longlink
forget
is "$(readlink longlink)" "$long"
is "$(stat -c %s longlink)" ${#long}
fails ln -s b sym
rm sym
is "$(cat b)" "$(printf 'shared\nmore')"
