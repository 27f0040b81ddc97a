# Programs that use more than RAM (PERCENT of it) finish, their memory verified, with our swap alone. The
# whole guest is short of memory, not a cgroup: the hardest case, and the one that could deadlock.
uzram up --size 1G --swap > /tmp/up 2>&1 || { cat /tmp/up; exit 1; }
cat /tmp/up
grep -q 'mem-limit' /tmp/up
# Root may do everything here, so nothing may be missing.
if grep -q for-swap /tmp/up; then exit 1; fi
pid=$(sed -n 's/.*served by process \([0-9]*\).*/\1/p' /tmp/up)
threads=0
for stat in /proc/"$pid"/task/*/stat; do
    # Field 9, behind a name that may hold spaces: PF_MEMALLOC_NOIO, an I/O flusher.
    flags=$(sed 's/.*) //' "$stat" | cut -d' ' -f7)
    if [ $((flags & 0x80000)) = 0 ]; then echo "$stat: flags $flags"; exit 1; fi
    threads=$((threads + 1))
done
[ "$threads" -ge 5 ]
[ "$(cat /proc/"$pid"/oom_score_adj)" = -1000 ]

# Strings of 4 KiB that compress to about a sixth, and all differ.
cat > /tmp/eat.awk <<'END'
function content(n,    a, b, c, d) {
    a = t[n % 997]; b = t[(n * 7) % 997]; c = t[(n * 31 + 5) % 997]; d = t[(n * 101 + 9) % 997]
    return sprintf("%d %s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
        n, a, b, c, d, b, c, d, a, c, d, a, b, t[n % 13], t[n % 17], t[n % 19], t[n % 23],
        t[n % 29], t[n % 31], t[n % 37], t[n % 41], t[n % 43], t[n % 47], t[n % 53], t[n % 59])
}
BEGIN {
    srand(1)
    for (i = 0; i < 997; i++) {
        s = ""
        for (j = 0; j < 2; j++) s = s sprintf("%08x%072d", int(rand() * 2147483647), 0)
        t[i] = s
    }
    for (n = 0; n < count; n++) memory[n] = content(n)
    for (n = 0; n < count; n++) if (memory[n] != content(n)) { print "string " n " is wrong"; exit 1 }
    print "all of it is right"
}
END
ram_kib=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
for run in $(seq "${RUNS:-1}"); do
    # 3900 bytes each, so 4 KiB as they lie in memory.
    busybox awk -v count=$((ram_kib * ${PERCENT:-120} / 400)) -f /tmp/eat.awk > /tmp/said
    grep -q 'all of it is right' /tmp/said || { cat /tmp/said; exit 1; }
    echo "run $run: $(grep -c . /proc/swaps) $(grep pswpout /proc/vmstat)"
done
uzram stat swap0 > /out/stat
grep -q 'failed_writes *0' /out/stat
swapped=$(sed -n 's/pswpout //p' /proc/vmstat)
[ $((swapped * 4)) -gt $((ram_kib / 4)) ]
[ "$(cat /proc/sys/vm/watermark_scale_factor)" = "${WATERMARK:-1000}" ]
uzram down swap0
[ "$(cat /proc/sys/vm/watermark_scale_factor)" = 10 ]

# A server that is killed under its swap: errors at most, and down takes all of it away.
uzram up --size 64M --swap > /tmp/up 2>&1
kill -9 "$(sed -n 's/.*served by process \([0-9]*\).*/\1/p' /tmp/up)"
if grep -q ublkb /proc/swaps; then
    # A disk that has vanished cannot be opened, so the kernel lists it for ever; it is said.
    until grep -q deleted /proc/swaps; do sleep 0.1; done
    if uzram down swap0 2> /tmp/said; then exit 1; fi
    grep 'until the machine restarts' /tmp/said
    uzram up --size 64M --swap > /tmp/up 2>&1
    grep -q 'at /dev/ublkb1' /tmp/up
    uzram down swap0
    [ "$(grep -c deleted /proc/swaps)" = 1 ]
    [ "$(grep -c . /proc/swaps)" = 2 ]
else
    uzram down swap0
    [ "$(grep -c . /proc/swaps)" -le 1 ]
fi
if grep -q uzram /proc/mounts; then exit 1; fi
echo "${RUNS:-1} x ${PERCENT:-120} % of $((ram_kib / 1024)) MiB, $((swapped / 256)) MiB swapped out" > /out/remark
