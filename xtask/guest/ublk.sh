# The kernel's driver for block devices in user space: ext4 on a disk of ours, servers that are killed,
# disks that come and go ROUNDS times, and users without privileges.
rounds=${ROUNDS:-20}
fail() { echo "$1"; exit 1; }
pid_of() { sed -n 's/.*served by process \([0-9]*\).*/\1/p' "$1"; }
disks() { find /dev -name 'ublk*' | sort | tr '\n' ' '; }

# Made, filled to the brim, checked, read back, emptied.
mkdir /mnt
uzram up --size 64M --mount /mnt > /tmp/up 2>&1 || fail "$(cat /tmp/up)"
cat /tmp/up
grep -q 'at /dev/ublkb0,' /tmp/up
server=$(pid_of /tmp/up)
queues=0
for thread in /proc/"$server"/task/*; do
    case $(cat "$thread/comm") in
        ublk-*)
            queues=$((queues + 1))
            # Field 9, behind a name that may hold spaces: PF_MEMALLOC_NOIO, an I/O flusher.
            flags=$(sed 's/.*) //' "$thread/stat" | cut -d' ' -f7)
            [ $((flags & 0x80000)) != 0 ] || fail "$thread: no I/O flusher, flags $flags" ;;
    esac
done
[ "$queues" = "$(nproc)" ] || fail "$queues queues"
[ "$(cat /sys/block/ublkb0/queue/logical_block_size)" = 4096 ]
[ "$(cat /sys/block/ublkb0/queue/discard_granularity)" = 4096 ]
[ "$(cat /sys/block/ublkb0/queue/write_zeroes_max_bytes)" = $((1 << 30)) ]

cat /bin/uzram /bin/busybox /proc/kallsyms > /tmp/data
copies=0
while dd if=/tmp/data of="/mnt/$copies" bs=100000 count=50 skip="$copies" 2> /tmp/full; do
    copies=$((copies + 1))
    test "$copies" -lt 100
done
grep 'No space left' /tmp/full
test "$copies" -ge 8
rm "/mnt/$copies"
(cd /mnt && sha256sum [0-9]*) > /tmp/sums
umount /mnt
e2fsck -f -n /dev/ublkb0
mount -t ext4 -o discard /dev/ublkb0 /mnt
(cd /mnt && sha256sum -c /tmp/sums)
full=$(uzram stat uzram0 --raw | awk 'NR == 1 { print $1 }')
rm /mnt/[0-9]*
# Only blocks whose removal has reached the journal are trimmed.
sync
fstrim /mnt
trimmed=$(uzram stat uzram0 --raw | awk 'NR == 1 { print $1 }')
test "$full" -gt $((copies * 5000000))
test "$trimmed" -lt $((full / 8))

# Where fio was brought along: what it writes and trims at random it reads back, checked, at every depth.
if [ -x /usr/bin/fio ]; then
    for unit in 4K 16K; do
        uzram serve --size 64M --name fio --unit "$unit" --attach ublk > /tmp/fio 2>&1 &
        until uzram stat fio > /tmp/said 2> /dev/null; do sleep 0.1; done
        fio --name=verify --filename=/dev/ublkb1 --direct=1 --ioengine=libaio --iodepth=32 --rw=randwrite \
            --bsrange=4k-256k --size=64M --io_size=128M --verify=crc32c --verify_fatal=1 --randseed=7 \
            --buffer_compress_percentage=50 --output=/tmp/verified
        grep -q 'err= 0' /tmp/verified || fail "$(cat /tmp/verified)"
        fio --name=trim --filename=/dev/ublkb1 --direct=1 --ioengine=psync --rw=randtrimwrite --bs=16k \
            --size=64M --io_size=64M --verify=crc32c --verify_fatal=1 --randseed=9 --output=/tmp/verified
        grep -q 'err= 0' /tmp/verified || fail "$(cat /tmp/verified)"
        uzram remove fio
    done
fi

# In use, it is neither removed nor ended.
if uzram remove uzram0 2> /tmp/said; then fail 'removed under a mount'; fi
grep -q 'mounted on /mnt' /tmp/said || fail "$(cat /tmp/said)"
uzram down /mnt
[ "$(disks)" = '/dev/ublk-control ' ] || fail "left: $(disks)"

# A server that is killed under a mounted file system: errors, and never zeroes.
uzram up --size 64M --mount /mnt > /tmp/up 2>&1
cp /bin/busybox /mnt/kept
sync
echo 3 > /proc/sys/vm/drop_caches
kill -9 "$(pid_of /tmp/up)"
if cat /mnt/kept > /tmp/read 2> /tmp/said; then fail 'a dead disk was read'; fi
grep -q 'Input/output error' /tmp/said || fail "$(cat /tmp/said)"
# What was read before the error, if anything was, was right.
read=$(stat -c %s /tmp/read)
[ "$read" = 0 ] || cmp -n "$read" /tmp/read /bin/busybox
until [ ! -e /dev/ublkb0 ]; do sleep 0.1; done
# Nobody gets the old disk: its name is refused while it is mounted, its number to everybody.
if uzram serve --size 64M --name uzram0 --attach ublk > /tmp/said 2>&1; then fail 'served twice'; fi
grep -q 'left by a server that was killed.*mounted on /mnt' /tmp/said || fail "$(cat /tmp/said)"
uzram serve --size 64M --name other --attach ublk > /tmp/other 2>&1 &
until uzram stat other > /tmp/said 2> /dev/null; do sleep 0.1; done
grep -q '/dev/ublkb1' /tmp/said || fail "$(cat /tmp/said)"
if cat /mnt/kept > /tmp/read 2> /dev/null; then fail 'a dead disk was revived'; fi
uzram down /mnt
if [ -e /dev/ublkc0 ]; then fail "left: $(disks)"; fi
# The number is free now, and the disk a new one: nothing of the old file system is on it.
uzram add --server other --size 64M --name uzram0 --attach ublk
[ "$(dd if=/dev/ublkb0 bs=4096 count=64 2> /dev/null | tr -d '\0' | wc -c)" = 0 ]
uzram remove uzram0

# Disks that come and go leave nothing in the server nor in the kernel.
server=$(pid_of /tmp/other)
held() { echo "$(ls /proc/"$server"/fd | wc -l) descriptors, $(ls /proc/"$server"/task | wc -l) threads, $(disks)"; }
for round in $(seq "$rounds"); do
    uzram add --server other --size 16M --name "n$((round % 2))" --attach ublk > /tmp/said
    if [ $((round % 5)) = 0 ]; then
        dd if=/tmp/data of=/dev/ublkb0 bs=1M count=4 conv=fsync 2> /dev/null
    fi
    uzram remove "n$((round % 2))"
    if [ "$round" = 5 ]; then
        before=$(held)
        memory=$(sed -n 's/VmRSS: *\([0-9]*\).*/\1/p' /proc/"$server"/status)
        mapped=$(sed -n 's/VmSize: *\([0-9]*\).*/\1/p' /proc/"$server"/status)
        slab=$(sed -n 's/Slab: *\([0-9]*\).*/\1/p' /proc/meminfo)
    fi
done
[ "$(held)" = "$before" ] || fail "$before became $(held)"
memory=$(($(sed -n 's/VmRSS: *\([0-9]*\).*/\1/p' /proc/"$server"/status) - memory))
mapped=$(($(sed -n 's/VmSize: *\([0-9]*\).*/\1/p' /proc/"$server"/status) - mapped))
slab=$(($(sed -n 's/Slab: *\([0-9]*\).*/\1/p' /proc/meminfo) - slab))
echo "after $((rounds - 5)) rounds: $memory KiB more resident, $mapped KiB more mapped, $slab KiB more slab"
[ "$memory" -lt $((1024 + rounds * 4)) ]
[ "$mapped" -lt 65536 ]
[ "$slab" -lt $((4096 + rounds * 16)) ]
kill "$server"
until [ ! -e /dev/ublkc1 ]; do sleep 0.1; done

# A user without privileges, first without a rule of udev's, then with what one would do.
echo 'user::1000:1000::/:/bin/sh' > /etc/passwd
mkdir -m 700 /run/user
chown 1000 /run/user
as_user() { su -s /bin/sh user -c "XDG_RUNTIME_DIR=/run/user $*"; }
if as_user uzram serve --size 16M --attach ublk 2> /tmp/said; then fail 'served without permission'; fi
grep -q 'ublk-control cannot be opened; be root' /tmp/said || fail "$(cat /tmp/said)"
chmod 666 /dev/ublk-control
if as_user uzram serve --size 16M --name mine --attach ublk 2> /tmp/said; then fail 'served without a rule'; fi
grep -q 'a udev rule' /tmp/said || fail "$(cat /tmp/said)"
(while [ ! -e /tmp/over ]; do chown 1000 /dev/ublk[bc]* 2> /dev/null || true; done) &
as_user uzram serve --size 16M --name mine --attach ublk > /tmp/mine 2>&1 &
until as_user uzram stat mine > /tmp/said 2> /dev/null; do sleep 0.1; done
mine=$(sed -n 's/ *endpoint *\(\/dev\/[a-z0-9]*\).*/\1/p' /tmp/said)
as_user dd if=/tmp/data of="$mine" bs=1M count=4 conv=fsync 2> /dev/null
as_user cmp -n $((4 << 20)) /tmp/data "$mine"
as_user uzram remove mine
touch /tmp/over
[ "$(disks)" = '/dev/ublk-control ' ] || fail "left: $(disks)"

echo "$copies files of 5 MB; $full bytes held, $trimmed after the trim; $rounds rounds, $memory KiB more" > /out/remark
