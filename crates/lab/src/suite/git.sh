# A repository: added, committed, walked by status, changed, checked out again.
have_tree
export GIT_CONFIG_GLOBAL=/tmp/gitconfig
git config --global user.name lab
git config --global user.email lab@example.org
git config --global init.defaultBranch main
git config --global --add safe.directory '*'
git config --global gc.auto 0
cp -a ../source-tree/tree work
cd work
git init -q
git add -A
git commit -q -m all
is "$(git status --porcelain)" ""
forget
is "$(git status --porcelain)" ""
echo change >>src/m03.c
rm doc/chapter-00/text-000.txt
echo new >new
is "$(git status --porcelain)" "$(printf ' D doc/chapter-00/text-000.txt\n M src/m03.c\n?? new')"
git stash -q
is "$(git status --porcelain)" "?? new"
git checkout -q -b other
git mv src/m04.c src/renamed.c
git commit -q -m renamed
git checkout -q main
[ -e src/m04.c ]
fails stat src/renamed.c
git merge -q other
[ -e src/renamed.c ]
git fsck --no-progress --strict
git clone -q . ../clone
is "$(cd ../clone && git rev-parse HEAD)" "$(git rev-parse HEAD)"
