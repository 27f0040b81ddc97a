# The system on the disk, after another QEMU has taken the disk from the same server.
grep '^/dev/vda / ext4 ' /proc/mounts
mount -t tmpfs none /tmp
sha256sum -c /test/sums > /tmp/checked
test "$(grep -c ': OK$' /tmp/checked)" = "$(wc -l < /test/sums)"

fio --name=verify --directory=/ --direct=1 --rw=randrw --bs=4k --size=8M --numjobs=2 \
    --ioengine=libaio --iodepth=8 --verify=crc32c --do_verify=1 > /tmp/fio || {
    cat /tmp/fio
    exit 1
}
rm /verify.*
sync
fstrim -v / > /tmp/trimmed
mkfs.ext4 -q -F /dev/vdb
e2fsck -f -n /dev/vdb
mount -o remount,ro /
e2fsck -f -n /dev/vda
mount -t tmpfs none /out
echo "$(wc -l < /tmp/checked) files as they were; $(cat /tmp/trimmed)" > /out/remark
