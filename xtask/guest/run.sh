# The programs of each run are in a group of their own.
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 groups /sys/fs/cgroup
# A program in a third of its memory, without swap: all of it is right, and the budget is kept but for what one look misses.
uzram run --memory 48M --stats -- eat $((144 << 20)) 2> /tmp/said || { cat /tmp/said; exit 1; }
cat /tmp/said
grep -q 'came back' /tmp/said
peak_mib=$(sed -n 's/.* \([0-9]*\) MiB at most, of a budget.*/\1/p' /tmp/said)
[ "$peak_mib" -le 96 ]
# A killed server ends the program, which never sees a wrong byte, with a message.
uzram run --memory 48M -- eat $((144 << 20)) > /tmp/out 2> /tmp/said &
front=$!
sleep 3
for process in /proc/[0-9]*; do
    if tr '\0' ' ' < "$process/cmdline" 2> /dev/null | grep -q run-server; then
        kill -9 "${process#/proc/}"
    fi
done
status=0
wait "$front" || status=$?
if [ "$status" != 0 ]; then
    [ "$status" = 125 ]
    grep -q 'the server was killed' /tmp/said
fi
# Memory that cannot leave has a limit, which the kernel keeps in the group of the run, and nowhere else.
if grep -q memory /sys/fs/cgroup/cgroup.controllers 2> /dev/null; then
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /tmp/shared
    mount -t tmpfs -o size=1g shared /tmp/shared
    status=0
    uzram run --memory 16M -- sh -c 'cat /dev/zero > /tmp/shared/file; exit 7' 2> /tmp/said || status=$?
    cat /tmp/said
    umount /tmp/shared
    [ "$status" = 7 ] || [ "$status" = 137 ]
    grep -q 'processes that the kernel has ended: [12];' /tmp/said
    [ -z "$(ls -d /sys/fs/cgroup/uzram-run-* 2> /dev/null)" ]
else
    echo "left out: the guest has no memory controller"
fi
echo "$peak_mib MiB at most, of a budget of 48" > /out/remark
