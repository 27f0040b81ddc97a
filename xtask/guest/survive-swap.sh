# Servers are killed while programs swap to their disk: the programs wait, and their memory is what they wrote. First a program
# alone is short of memory, in a group of its own. Then the whole guest is, the successors too: what they take over may not
# have been swapped out to the disk that nobody serves, and their start may not wait for memory.
kills=${KILLS:-8}
fail() { echo "$1"; cat /tmp/up /run/uzram/*.log; exit 1; }
asked() { uzram stat s 2> /dev/null | awk -v what="$1" '$1 == what { print $2 }'; }
killed=0

# Kills servers beside a program, until as many were as the first argument says or it has ended.
kill_beside() {
    until=$1
    shift
    "$@" &
    program=$!
    while [ "$killed" -lt "$until" ] && kill -0 "$program" 2> /dev/null; do
        sleep "${PAUSE:-3}.$((killed % 7))"
        server=$(asked pid)
        kill -9 "$server" || continue
        killed=$((killed + 1))
        echo "kill $killed at $(cut -d' ' -f1 /proc/uptime)"
        tries=0
        until now=$(asked pid); [ -n "$now" ] && [ "$now" != "$server" ]; do
            tries=$((tries + 1))
            [ "$tries" -lt 200 ] || fail "no successor of $server"
            sleep 0.1
        done
    done
    wait "$program" || fail "$*: status $?"
}

uzram up --size 800M --swap --survive --name s > /tmp/up 2>&1 || fail up
if grep -q for-swap /tmp/up; then fail 'refused by the system'; fi
grep "$DISK" /proc/swaps
grep -q '^uzram-memory$' /proc/[0-9]*/comm || fail "nobody keeps its memory: $(cat /tmp/up)"

# Everything of it is in memory that cannot be swapped out, also while nobody serves it.
mkdir -p /sys/fs/cgroup
mount -t cgroup2 groups /sys/fs/cgroup
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/short
echo 100M > /sys/fs/cgroup/short/memory.max
printf '#!/bin/sh\necho $$ > /sys/fs/cgroup/short/cgroup.procs\nexec eat 201326592\n' > /tmp/short
chmod +x /tmp/short
while [ "$killed" -lt $((kills / 2)) ]; do kill_beside $((kills / 2)) /tmp/short; done
alone=$killed

ram_kib=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
while [ "$killed" -lt "$kills" ]; do kill_beside "$kills" eat $((ram_kib * 9 / 8 * 1024)); done
swapped=$(sed -n 's/pswpout //p' /proc/vmstat)
[ $((swapped * 4)) -gt $((ram_kib / 4)) ] || fail "$swapped pages swapped"
last=$(uzram stat s | sed -n 's/.*served for //p')
[ "$(asked take_overs)" = "$killed" ] || fail "$(uzram stat s)"
[ "$(asked failed_writes)" = 0 ] || fail "$(uzram stat s)"
[ "$(asked lost_pages)" = 0 ] || fail "$(uzram stat s)"
uzram down s || fail down
[ "$(grep -c . /proc/swaps)" -le 1 ] || fail "$(cat /proc/swaps)"
sleep 1
left=$(grep -l uzram /proc/[0-9]*/comm 2> /dev/null || true)
[ -z "$left" ] || fail "left: $left"
[ -z "$(ls /run/uzram)" ] || fail "left: $(ls /run/uzram)"
if dmesg | grep -iE 'i/o error|error on swap-device|(allocation|nospace) error'; then fail 'the kernel saw errors'; fi
echo "$alone + $((killed - alone)) kills, $((swapped / 256)) MiB swapped out, last pause $last" > /out/remark
