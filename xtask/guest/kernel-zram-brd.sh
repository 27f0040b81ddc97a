# The kernel's own RAM disks exist, with every algorithm that we compare with, and take a filesystem.
mkdir /mnt
use() {
    mkfs.ext4 -q -F "$1"
    mount -t ext4 "$1" /mnt
    cp /bin/busybox /mnt
    umount /mnt
    e2fsck -f -n "$1"
    mount -t ext4 "$1" /mnt
    cmp /bin/busybox /mnt/busybox
    umount /mnt
}
for algorithm in lz4 lz4hc zstd deflate; do
    echo "$algorithm" > /sys/block/zram0/comp_algorithm
    echo 32M > /sys/block/zram0/disksize
    use /dev/zram0
    echo "$algorithm $(cat /sys/block/zram0/mm_stat)" | tee -a /out/mm_stat
    echo 1 > /sys/block/zram0/reset
done
use /dev/ram0
