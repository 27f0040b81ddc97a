# What the tests share whose servers are killed under a block device of the disk d.
kills=${KILLS:-8}
fail() { echo "$1"; exit 1; }
told() { uzram stat d 2> /dev/null | awk -v what="$1" '$1 == what { print $2 }'; }
pid_of() { told pid; }
# What the kernel has completed on the disk.
ended() { awk '{ print $1 + $5 }' "/sys/block/${disk#/dev/}/stat"; }
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
# Serves the disk with these options, and waits until it does.
serve() {
    uzram serve --survive --size 64M --name d --checksum "$@" > /tmp/served 2>&1 &
    holder=$!
    killed=0
    until [ -n "$(pid_of)" ]; do sleep 0.1; done
}
# What servers leave at the end: nothing.
leaves_nothing() {
    kill -TERM "$holder"
    wait "$holder"
    [ -z "$(ls /run/uzram)" ] || fail "left: $(ls /run/uzram)"
}

# Kills servers while fio writes to the disk and checks what it reads.
under_fio() {
    fio --eta=never --name=verify --filename="$disk" --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-64k \
        --size=64M --time_based --runtime=10000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --randseed=7 \
        --output=/tmp/verified &
    fio=$!
    while [ "$killed" -lt "$kills" ]; do
        changes 'no request ends' ended "$(ended)"
        sleep "0.$((killed % 7))"
        kill_it
        kill -0 "$fio" || fail "$disk: fio ended after $killed kills: $(cat /tmp/verified)"
    done
    changes 'no request ends' ended "$(ended)"
    pause=$(uzram stat d | sed -n 's/.*served for //p')
    sleep 2
    kill -INT "$fio"
    wait "$fio" || true
    grep -q 'err= 0' /tmp/verified || fail "$disk: $(cat /tmp/verified)"
    if grep 'I/O error' /tmp/verified; then fail "$(cat /tmp/verified)"; fi
}

# Kills servers under a file system, whose files were synced before.
under_ext4() {
    mkfs.ext4 -q -F "$disk"
    mkdir -p /mnt
    mount -t ext4 "$disk" /mnt
    for round in 1 2 3 4 5; do
        head -c 3000000 /bin/uzram > "/mnt/$round"
        sync
        kill_it
        cmp -n 3000000 "/mnt/$round" /bin/uzram
    done
    echo 3 > /proc/sys/vm/drop_caches
    for round in 1 2 3 4 5; do cmp -n 3000000 "/mnt/$round" /bin/uzram; done
    umount /mnt
    e2fsck -f -n "$disk"
}

# All kills were survived, without a loss.
all_survived() {
    [ "$(told take_overs)" = "$killed" ] || fail "$killed kills: $(uzram stat d)"
    [ "$(told lost_pages)" = 0 ] || fail "$(uzram stat d)"
}
