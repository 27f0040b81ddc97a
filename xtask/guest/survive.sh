# Servers are killed KILLS times under each kind of disk in ATTACH while fio writes to it and checks what it reads: requests wait,
# and none fails or is lost. The last line of a file system's check, and what servers leave at the end: nothing.
kills=${KILLS:-20}
fail() { echo "$1"; exit 1; }
pid_of() { uzram stat d 2> /dev/null | awk '$1 == "pid" { print $2 }'; }
pauses=''

for attach in ${ATTACH:-ublk loop}; do
    uzram serve --survive --size 64M --name d --checksum --attach "$attach" > /tmp/served 2>&1 &
    holder=$!
    until [ -n "$(pid_of)" ]; do sleep 0.1; done
    disk=$(uzram stat d | awk '$1 == "endpoint" { print $2 }')
    [ -b "$disk" ] || fail "$attach: $disk: $(cat /tmp/served)"
    fio --eta=never --name=verify --filename="$disk" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-64k \
        --size=64M --time_based --runtime=10000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --randseed=7 \
        --output=/tmp/verified &
    fio=$!
    killed=0
    while [ "$killed" -lt "$kills" ]; do
        sleep "0.$((killed % 7))"
        server=$(pid_of)
        kill -9 "$server"
        killed=$((killed + 1))
        tries=0
        until now=$(pid_of); [ -n "$now" ] && [ "$now" != "$server" ]; do
            tries=$((tries + 1))
            [ "$tries" -lt 300 ] || fail "$attach: no successor: $(cat /tmp/served)"
            sleep 0.1
        done
        kill -0 "$fio" || fail "$attach: fio ended after $killed kills: $(cat /tmp/verified)"
    done
    pauses="$pauses $attach $(uzram stat d | sed -n 's/.*served for //p')"
    sleep 2
    kill -INT "$fio"
    wait "$fio" || true
    grep -q 'err= 0' /tmp/verified || fail "$attach: $(cat /tmp/verified)"
    if grep 'I/O error' /tmp/verified; then fail "$(cat /tmp/verified)"; fi

    # A file system, whose files were synced before a kill.
    mkfs.ext4 -q -F "$disk"
    mkdir -p /mnt
    mount -t ext4 "$disk" /mnt
    for round in 1 2 3 4 5; do
        head -c 3000000 /bin/uzram > "/mnt/$round"
        sync
        server=$(pid_of)
        kill -9 "$server"
        cmp -n 3000000 "/mnt/$round" /bin/uzram
    done
    echo 3 > /proc/sys/vm/drop_caches
    for round in 1 2 3 4 5; do cmp -n 3000000 "/mnt/$round" /bin/uzram; done
    umount /mnt
    e2fsck -f -n "$disk"

    [ "$(uzram stat d | awk '$1 == "take_overs" { print $2 }')" = $((kills + 5)) ] || fail "$(uzram stat d)"
    [ "$(uzram stat d | awk '$1 == "lost_pages" { print $2 }')" = 0 ]
    kill -TERM "$holder"
    wait "$holder"
    [ -z "$(ls /run/uzram)" ] || fail "left: $(ls /run/uzram)"
    [ -z "$(ls /dev/ublkb* 2> /dev/null)" ] || fail "left: $(ls /dev/ublk*)"
done
if dmesg | grep -i 'i/o error'; then fail 'the kernel saw errors'; fi
echo "$kills kills each;$pauses" > /out/remark
