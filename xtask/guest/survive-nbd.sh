# The kernel's NBD client has a disk whose server is killed KILLS times, over a Unix socket and over TCP. By itself it does not
# connect again, so qemu-nbd does for it: requests wait, and none fails or is lost.
kills=${KILLS:-20}
fail() { echo "$1"; exit 1; }
pid_of() { uzram stat d 2> /dev/null | awk '$1 == "pid" { print $2 }'; }
# What the kernel has completed on the disk.
ended() { awk '{ print $1 + $5 }' /sys/block/nbd0/stat; }
# Waits until the command's output is no longer the same.
changes() {
    tries=0
    while [ "$($2)" = "$3" ] || [ -z "$($2)" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "$1 after $killed kills: $(cat /tmp/served)"
        sleep 0.1
    done
}
kill_it() {
    server=$(pid_of)
    kill -9 "$server"
    killed=$((killed + 1))
    changes 'no successor' pid_of "$server"
}
# qemu-nbd has a lock there.
mkdir -p /var/lock /mnt
mkfifo /tmp/pipe
said=''

for over in unix tcp; do
    [ "$over" = unix ] && listen='' || listen='--listen 127.0.0.1:10809'
    uzram serve --survive --size 64M --name d --checksum $listen > /tmp/served 2>&1 &
    holder=$!
    killed=0
    until [ -n "$(pid_of)" ]; do sleep 0.1; done
    endpoint=$(uzram stat d | awk '$1 == "endpoint" { print $2 }')
    case $over in
        unix) server='server.type=unix,server.path=/run/uzram/d.nbd' ;;
        tcp) server='server.type=inet,server.host=127.0.0.1,server.port=10809' ;;
    esac
    qemu-nbd --fork --connect=/dev/nbd0 --cache=none --discard=unmap \
        --image-opts "driver=nbd,$server,export=d,reconnect-delay=60"
    until [ "$(cat /sys/block/nbd0/size)" = $((64 << 11)) ]; do sleep 0.1; done
    fio --name=verify --filename=/dev/nbd0 --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-64k \
        --size=64M --time_based --runtime=10000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --randseed=7 \
        --output=/tmp/verified &
    fio=$!
    while [ "$killed" -lt "$kills" ]; do
        changes 'no request ends' ended "$(ended)"
        sleep "0.$((killed % 7))"
        kill_it
        kill -0 "$fio" || fail "$over: fio ended after $killed kills: $(cat /tmp/verified)"
    done
    changes 'no request ends' ended "$(ended)"
    pause=$(uzram stat d | sed -n 's/.*served for //p')
    sleep 2
    kill -INT "$fio"
    wait "$fio" || true
    grep -q 'err= 0' /tmp/verified || fail "$over: $(cat /tmp/verified)"
    if grep 'I/O error' /tmp/verified; then fail "$(cat /tmp/verified)"; fi
    slowest=$(sed -n 's/^ *lat (\(.\)sec).*max= *\([0-9.k]*\).*/\2 \1s/p' /tmp/verified | tr '\n' ' ')
    said="$said $over $pause, slowest request $slowest;"

    # A file system, whose files were synced before a kill.
    mkfs.ext4 -q -F /dev/nbd0
    mount -t ext4 /dev/nbd0 /mnt
    for round in 1 2 3 4 5; do
        head -c 3000000 /bin/uzram > "/mnt/$round"
        sync
        kill_it
        cmp -n 3000000 "/mnt/$round" /bin/uzram
    done
    echo 3 > /proc/sys/vm/drop_caches
    for round in 1 2 3 4 5; do cmp -n 3000000 "/mnt/$round" /bin/uzram; done
    umount /mnt
    e2fsck -f -n /dev/nbd0

    # A program of libnbd ends with its connection. The next one sees all.
    nbdcopy "$endpoint" - > /tmp/pipe 2> /tmp/copied &
    copy=$!
    { head -c 1000000 > /dev/null; kill_it; cat > /dev/null; } < /tmp/pipe
    if wait "$copy"; then fail 'nbdcopy saw no end of its connection'; fi
    nbdcopy "$endpoint" /tmp/copy
    cmp /dev/nbd0 /tmp/copy
    rm /tmp/copy

    [ "$(uzram stat d | awk '$1 == "take_overs" { print $2 }')" = $((kills + 6)) ] || fail "$(uzram stat d)"
    [ "$(uzram stat d | awk '$1 == "lost_pages" { print $2 }')" = 0 ]
    qemu-nbd --disconnect /dev/nbd0
    kill -TERM "$holder"
    wait "$holder"
    [ -z "$(ls /run/uzram)" ] || fail "left: $(ls /run/uzram)"
done
if dmesg | grep -i 'i/o error'; then fail 'the kernel saw errors'; fi

# nbd-client, which connects once: its disk fails, and is whole again once it is attached anew.
uzram serve --survive --size 64M --name d --checksum > /tmp/served 2>&1 &
holder=$!
until [ -n "$(pid_of)" ]; do sleep 0.1; done
nbd-client -unix /run/uzram/d.nbd /dev/nbd0 -name d
mkfs.ext4 -q -F /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt
head -c 3000000 /bin/uzram > /mnt/file
sync
kill_it
nbd-client -d /dev/nbd0
umount /mnt
nbd-client -unix /run/uzram/d.nbd /dev/nbd0 -name d
e2fsck -p /dev/nbd0 || [ $? = 1 ]
mount -t ext4 /dev/nbd0 /mnt
cmp -n 3000000 /mnt/file /bin/uzram
umount /mnt
nbd-client -d /dev/nbd0
kill -TERM "$holder"
wait "$holder"
echo "$kills kills each;$said" > /out/remark
