# FIFOs, sockets, devices, sticky and set-id bits.
mkfifo fifo
is "$(stat -c %F fifo)" fifo
echo through >fifo &
is "$(cat fifo)" through
wait
mknod null c 1 3
is "$(stat -c '%F %t %T' null)" "character special file 1 3"
echo gone >null
is "$(cat null)" ""
mknod block b 7 200
is "$(stat -c '%F %t %T' block)" "block special file 7 c8"
mkdir sticky
chmod 1777 sticky
is "$(stat -c %a sticky)" 1777
touch setid
chmod 6755 setid
is "$(stat -c %a setid)" 6755
forget
is "$(stat -c '%F %t %T' null) $(stat -c %F fifo) $(stat -c %a setid)" "character special file 1 3 fifo 6755"
