# Programs that use twice the RAM finish, their memory verified, with our swap alone. The
# whole guest is short of memory, not a cgroup: the hardest case, and the one that could deadlock.
# A slot that the kernel no longer uses keeps its page until all of its cluster is free and is discarded, so a
# disk counts as full: its size, to a fifth, is within the limit of half of RAM.
uzram up --size 640M --swap > /tmp/up 2>&1 || { cat /tmp/up; exit 1; }
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

ram_kib=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
for run in $(seq "${RUNS:-1}"); do
    eat $((ram_kib * 2 * 1024))
    echo "run $run: $(cut -d' ' -f1 /proc/uptime) s up, $(grep pswpout /proc/vmstat)"
done
uzram stat swap0 > /out/stat
grep -q 'failed_writes *0' /out/stat
settings() { echo "$(cat /proc/sys/vm/watermark_scale_factor) $(cat /proc/sys/vm/watermark_boost_factor)"; }
swapped=$(sed -n 's/pswpout //p' /proc/vmstat)
[ $((swapped * 4)) -gt $((ram_kib / 4)) ]
[ "$(settings)" = "${WATERMARKS:-1000 0}" ]
# As long as any disk is swapped to.
uzram up --size 64M --swap --name other
uzram down swap0
[ "$(settings)" = "${WATERMARKS:-1000 0}" ]
uzram down other
[ "$(settings)" = "10 15000" ]

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
echo "${RUNS:-1} x 200 % of $((ram_kib / 1024)) MiB, $((swapped / 256)) MiB swapped out" > /out/remark
