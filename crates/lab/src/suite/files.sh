# The smallest things: create, read back, change, list, remove.
echo hello >a
is "$(cat a)" hello
is "$(stat -c '%s %F %a %u %g %h' a)" "6 regular file 644 0 0 1"
: >empty
is "$(stat -c %s empty)" 0
mkdir -p d/e/f
echo deep >d/e/f/g
is "$(cat d/e/f/g)" deep
is "$(find . | sort | tr '\n' ' ')" ". ./a ./d ./d/e ./d/e/f ./d/e/f/g ./empty "
fails mkdir d
fails rmdir d
fails rm d
fails cat nothing
fails mkdir a/b
(set -o noclobber; echo once >excl; fails bash -c 'set -o noclobber; echo twice >excl')
is "$(cat excl)" once
chmod 600 a
chown 7:8 a
is "$(stat -c '%a %u %g' a)" "600 7 8"
touch -d '2001-02-03 04:05:06.5' a
is "$(stat -c %Y a)" "$(date -d '2001-02-03 04:05:06' +%s)"
forget
is "$(stat -c '%a %u %g %Y' a)" "600 7 8 $(date -d '2001-02-03 04:05:06' +%s)"
rm a
fails cat a
rm -r d
is "$(ls)" "$(printf 'empty\nexcl')"
df . >/dev/null
