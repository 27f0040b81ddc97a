# Tables of atomic sectors: made here and used by the kernel's nd_btt, and the other way round; files on
# DAX; a disk that is full while a file on it is mapped.
until [ -b /dev/pmem0 ] && [ -b /dev/pmem1 ] && [ -b /dev/pmem2 ]; do sleep 0.1; done
drivers=/sys/bus/nd/drivers

# serve NAME OPTIONS…: as /dev/nbd0.
serve() {
    name=$1
    shift
    uzram serve --no-sandbox --name "$name" --socket "/run/$name.sock" "$@" > "/out/$name.txt" &
    server=$!
    until [ -S "/run/$name.sock" ]; do
        kill -0 "$server"
        sleep 0.1
    done
    nbd-client -unix "/run/$name.sock" /dev/nbd0 -name "$name" -connections 2 -block-size 512
}
unserve() {
    sync
    nbd-client -d /dev/nbd0
    kill "$server"
    wait "$server"
    rm -f "/run/$name.sock"
}

# The device without and with what the kernel finds on it.
raw() {
    namespace=$1
    ndctl disable-namespace "$namespace" || true
    for node in /sys/bus/nd/devices/btt*; do
        if [ "$(cat "$node/namespace" 2> /dev/null)" = "$namespace" ]; then
            echo "${node##*/}" > "$drivers/nd_btt/unbind" || true
        fi
    done
    echo 1 > "/sys/bus/nd/devices/$namespace/force_raw"
    echo "$namespace" > "$drivers/nd_pmem/bind" || true
    until [ -b "/dev/pmem${namespace#namespace}" ] || [ -b "$2" ]; do sleep 0.1; done
}
cooked() {
    namespace=$1
    echo "$namespace" > "$drivers/nd_pmem/unbind" || true
    echo 0 > "/sys/bus/nd/devices/$namespace/force_raw"
    echo "$namespace" > "$drivers/nd_pmem/bind" || true
    until [ -b "$2" ]; do sleep 0.1; done
}

# scribble DEVICE SEED: most of it, then a part of it again and again, so that blocks change places.
cat /bin/uzram /bin/busybox > /tmp/data
scribble() {
    dd if=/tmp/data of="$1" bs=64k count=200 skip="$2" conv=notrunc 2> /dev/null
    for again in 1 2 3; do
        dd if=/tmp/data of="$1" bs=512 count=3000 skip=$(($2 * 7 + again)) seek=$((again * 100)) \
            conv=notrunc,fsync 2> /dev/null
    done
    sync
}
sum() { dd if="$1" bs=64k 2> /dev/null | sha256sum | cut -c -64; }
check() {
    uzram btt check "$1"
    uzram btt check "$1" --json > /tmp/check.json
    grep -q '"problem_count": 0' /tmp/check.json
}

# Ours first: pmem0, sectors of 512 bytes.
uzram btt create /dev/pmem0 --sector-size 512
serve ours --device btt --path /dev/pmem0
ours_size=$(cat /sys/block/nbd0/size)
scribble /dev/nbd0 1
ours_sum=$(sum /dev/nbd0)
unserve
check /dev/pmem0
cooked namespace0.0 /dev/pmem0s
test "$(cat /sys/block/pmem0s/size)" = "$ours_size"
test "$(cat /sys/block/pmem0s/queue/logical_block_size)" = 512
test "$(sum /dev/pmem0s)" = "$ours_sum"
scribble /dev/pmem0s 2
theirs_sum=$(sum /dev/pmem0s)
test "$theirs_sum" != "$ours_sum"
ndctl disable-namespace namespace0.0
ndctl check-namespace namespace0.0
raw namespace0.0 /dev/pmem0
check /dev/pmem0
serve again --device btt --path /dev/pmem0
test "$(sum /dev/nbd0)" = "$theirs_sum"
unserve

# The kernel's first: pmem1, sectors of 4096 bytes.
ndctl create-namespace -f -e namespace1.0 -m sector -l 4096
until [ -b /dev/pmem1s ]; do sleep 0.1; done
theirs_size=$(cat /sys/block/pmem1s/size)
scribble /dev/pmem1s 3
theirs_sum=$(sum /dev/pmem1s)
raw namespace1.0 /dev/pmem1
check /dev/pmem1
serve theirs --device btt --path /dev/pmem1
test "$(cat /sys/block/nbd0/size)" = "$theirs_size"
test "$(sum /dev/nbd0)" = "$theirs_sum"
scribble /dev/nbd0 4
ours_sum=$(sum /dev/nbd0)
unserve
check /dev/pmem1
cooked namespace1.0 /dev/pmem1s
test "$(sum /dev/pmem1s)" = "$ours_sum"
ndctl disable-namespace namespace1.0
ndctl check-namespace namespace1.0

# Damage that the kernel's checker sees, mended here, is mended for it too.
raw namespace1.0 /dev/pmem1
dd if=/dev/zero of=/dev/pmem1 bs=4096 seek=1 count=1 conv=notrunc,fsync
uzram btt check /dev/pmem1 | grep -q 'damaged info blocks *1'
uzram btt repair /dev/pmem1
sync
cooked namespace1.0 /dev/pmem1s
test "$(sum /dev/pmem1s)" = "$ours_sum"
ndctl disable-namespace namespace1.0
ndctl check-namespace namespace1.0

# A file on DAX: the CPU makes it durable, and the server says nothing of disks. A block of such a file is a page.
page_kib=$(awk '/KernelPageSize/ { print $2; exit }' /proc/self/smaps)
ndctl create-namespace -f -e namespace2.0 -m fsdax -M mem -a "${page_kib}k"
until [ -b /dev/pmem2 ]; do sleep 0.1; done
mkfs.ext4 -q -b $((page_kib * 1024)) -F /dev/pmem2
mkdir /mnt
mount -t ext4 -o dax /dev/pmem2 /mnt
uzram btt create /mnt/table --size 17M > /tmp/said
cat /tmp/said
if grep 'waits for the disk' /tmp/said; then exit 1; fi
serve dax --device btt --path /mnt/table
grep -A 25 '/mnt/table$' "/proc/$server/smaps" | grep VmFlags | grep -qw sf
scribble /dev/nbd0 5
unserve
check /mnt/table
umount /mnt

# A file with holes on a full disk: an error, and the server lives on.
mkdir /full
mount -t tmpfs -o size=8M full /full
serve full --device pmem --path /full/disk --size 4M
truncate -s 0 /full/disk
truncate -s 4M /full/disk
if dd if=/dev/zero of=/full/rest bs=64k 2> /dev/null; then exit 1; fi
if dd if=/tmp/data of=/dev/nbd0 bs=64k count=16 conv=notrunc,fsync; then exit 1; fi
kill -0 "$server"
uzram stat full > /out/stat.txt
if dd if=/dev/zero bs=1M count=9 of=/full/more; then exit 1; fi
if uzram serve --device pmem --path /full/new --size 4M 2> /tmp/refused; then exit 1; fi
cat /tmp/refused
grep -q 'cannot hold 4194304 bytes' /tmp/refused
nbd-client -d /dev/nbd0
kill "$server"
echo "512 and 4096 bytes, both ways, and ndctl finds nothing" > /out/remark
