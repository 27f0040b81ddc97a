# A disk over vhost-user, served by the static binary outside: it gets a file system and a whole system to
# boot from, which is this one. A second disk is worked on by fio, and trimmed.
test "$(cat /sys/block/vda/serial)" = disk0
test "$(cat /sys/block/vda/size)" = $((256 << 11))
test "$(cat /sys/block/vda/queue/physical_block_size)" = 4096
test "$(ls /sys/block/vda/mq | wc -l)" = "$CPUS"
test "$(cat /sys/block/vda/queue/discard_max_bytes)" -gt 0
test "$(cat /sys/block/vda/queue/write_zeroes_max_bytes)" -gt 0

mkfs.ext4 -q -F /dev/vda
mkdir /mnt
mount -t ext4 /dev/vda /mnt
for folder in bin etc lib lib64 sbin usr test; do
    if [ -e "/$folder" ]; then cp -a "/$folder" /mnt; fi
done
mkdir /mnt/dev /mnt/proc /mnt/sys /mnt/out /mnt/run /mnt/tmp
cp /test/second /mnt/test/run
rm /mnt/test/second
(cd /mnt && find bin lib* sbin usr -type f | sort | xargs sha256sum > test/sums)
(cd /mnt && wc -l < test/sums) > /tmp/files
umount /mnt
e2fsck -f -n /dev/vda
test "$(cat /tmp/files)" -gt 20
echo "$(cat /tmp/files) files" > /out/filled

fio --name=verify --filename=/dev/vdb --direct=1 --rw=randwrite --bsrange=512-64k --size=24M \
    --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 --fallocate=none > /tmp/fio || {
    cat /tmp/fio
    exit 1
}
blkdiscard /dev/vdb
tr '\0' 'x' < /dev/vdb | head -c 1048576 | tr -d 'x' | wc -c | grep '^0$'
