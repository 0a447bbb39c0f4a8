# In front of every step: a fresh directory, and words to say what must hold.
umask 022
rm -rf "$MOUNT/$STEP"
mkdir "$MOUNT/$STEP"
cd "$MOUNT/$STEP"

# is GOT WANTED: equal, or the step fails saying both.
is() { [ "$1" = "$2" ] || { echo "got '$1', wanted '$2'"; return 1; }; }
# fails COMMAND…: the command must fail.
fails() { if "$@" 2>/dev/null; then echo "succeeded and must not: $*"; return 1; fi; }
# as UID COMMAND…: as another user, in a group of the same number.
as() { local id=$1; shift; setpriv --reuid="$id" --regid="$id" --clear-groups -- "$@"; }
# The kernel forgets what it has cached.
forget() { sync -f . 2>/dev/null || sync; echo 3 >/proc/sys/vm/drop_caches; }
# have_tree: ../source-tree/tree is there, copied now if its own step did not run.
have_tree() { [ -e ../source-tree/tree/Makefile ] || { mkdir -p ../source-tree; cp -a /mnt/lab/tree ../source-tree/; }; }
