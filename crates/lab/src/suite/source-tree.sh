# A source tree: copied in, compared, walked, archived and copied about.
cp -a /mnt/lab/tree .
forget
(cd tree && sha256sum --quiet -c /mnt/lab/tree.sha256)
# All that a copy keeps: not the times of symbolic links, which some servers cannot set, nor the sizes of directories.
walk() { (cd "$1" && find . -type f -printf '%P %y %s %m %T@\n' -o -type l -printf '%P %y %s %l\n' -o -printf '%P %y %m\n' | sort); }
walk /mnt/lab/tree >/tmp/wanted
walk tree >/tmp/cold
walk tree >/tmp/warm
diff /tmp/wanted /tmp/cold
diff /tmp/cold /tmp/warm
files=$(find tree -type f | wc -l)
is "$files" "$(wc -l </mnt/lab/tree.sha256)"
tar cf tree.tar tree
mkdir unpacked
tar xf tree.tar -C unpacked
forget
diff -r tree unpacked/tree
rm -r unpacked
fails stat unpacked
is "$(tar tf tree.tar | grep -c '[^/]$')" $((files + 1)) # and a symbolic link
grep -rl vnode tree/doc | sort >/tmp/found
grep -rl vnode tree/doc | sort | cmp - /tmp/found
echo "# $files files"
