# The static binary serves a disk, the kernel's NBD client attaches it, and ext4 lives on it: made,
# filled to the brim, checked, read back, emptied.
uzram serve --size 64M --name disk --algorithm lz4 --socket /run/disk.sock &
server=$!
until [ -S /run/disk.sock ]; do sleep 0.1; done

nbd-client -unix /run/disk.sock /dev/nbd0 -name disk -connections 2 -block-size 4096
test "$(cat /sys/block/nbd0/size)" = $((64 << 11))
mkfs.ext4 -q -F /dev/nbd0
mkdir /mnt
mount -t ext4 /dev/nbd0 /mnt

# Each file holds other bytes; the last one does not fit.
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
e2fsck -f -n /dev/nbd0

mount -t ext4 /dev/nbd0 /mnt
(cd /mnt && sha256sum -c /tmp/sums)
uzram stat disk > /out/full.txt
full=$(uzram stat disk --raw | awk 'NR == 1 { print $1 }')
rm /mnt/[0-9]*
# Only blocks whose removal has reached the journal are trimmed.
sync
fstrim /mnt
umount /mnt
e2fsck -f -n /dev/nbd0
uzram stat disk > /out/trimmed.txt
trimmed=$(uzram stat disk --raw | awk 'NR == 1 { print $1 }')
test "$full" -gt $((copies * 5000000))
test "$trimmed" -lt $((full / 8))
nbd-client -d /dev/nbd0

kill "$server"
wait "$server"
echo "$copies files of 5 MB; $full bytes held, $trimmed after the trim" > /out/remark
