# Two users and root: modes are enforced for each, also on what another has just read.
chmod 755 .
echo public >public
echo secret >secret
chown 1001:1001 secret
chmod 600 secret
is "$(as 1001 cat secret)" secret
fails as 1002 cat secret
is "$(as 1001 cat secret)" secret
fails as 1002 cat secret
is "$(as 1002 cat public)" public
fails as 1001 bash -c 'echo x >>public'
fails as 1001 touch mine
mkdir shared
chmod 1777 shared
as 1001 bash -c 'echo of-1001 >shared/a'
is "$(stat -c '%u %g' shared/a)" "1001 1001"
fails as 1002 rm -f shared/a
fails as 1002 bash -c 'echo x >>shared/a'
is "$(as 1002 cat shared/a)" of-1001
as 1001 chmod 640 shared/a
fails as 1002 cat shared/a
as 1001 chmod 644 shared/a
is "$(as 1002 cat shared/a)" of-1001
mkdir private
chown 1001:1001 private
chmod 700 private
as 1001 bash -c 'echo inside >private/f'
fails as 1002 cat private/f
fails as 1002 ls private
is "$(as 1001 cat private/f)" inside
fails as 1002 chown 1002 shared/a
fails as 1002 chmod 777 shared/a
# By group, as a supplementary one too.
echo for-2000 >group
chown 1001:2000 group
chmod 640 group
is "$(setpriv --reuid=1003 --regid=1003 --groups=2000 cat group)" for-2000
is "$(setpriv --reuid=1003 --regid=2000 --clear-groups cat group)" for-2000
fails setpriv --reuid=1003 --regid=1003 --groups=2001 cat group
# Execute permission.
printf '#!/bin/sh\necho ran\n' >script
chmod 744 script
is "$(./script)" ran
fails as 1001 ./script
chmod 755 script
is "$(as 1001 ./script)" ran
