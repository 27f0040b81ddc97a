# The machine's extra devices are there and hold what is written; drivers for later tests load.
test -c /dev/ublk-control
# Persistent memory is looked for in the background; the time limit ends a wait in vain.
until [ -b /dev/pmem0 ]; do sleep 0.1; done
test "$(cat /sys/block/vda/size)" = $((16 << 11))
test "$(cat /sys/block/pmem0/size)" = $((64 << 11))
test "$(cat /sys/block/vdb/size)" = $((32 << 11))

put() {
    echo "uzram $2" | dd of="$1" conv=fsync,notrunc
    test "$(dd if="$1" count=1 | head -n 1)" = "uzram $2"
}
put /dev/vda virtio
put /dev/pmem0 pmem
put /dev/vdb vhost-user
