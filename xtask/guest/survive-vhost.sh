# A disk over vhost-user whose server, outside, is killed every one or two seconds: requests wait until QEMU has connected again,
# and none fails or is lost.
fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-64k \
    --size=64M --time_based --runtime="${SECONDS_OF_LOAD:-20}" --verify=crc32c --verify_fatal=1 --verify_backlog=256 --randseed=7 \
    --output=/tmp/verified || { cat /tmp/verified; exit 1; }
grep -q 'err= 0' /tmp/verified || { cat /tmp/verified; exit 1; }
mkfs.ext4 -q -F /dev/vda
mkdir /mnt
mount -t ext4 /dev/vda /mnt
for round in 1 2 3 4 5 6; do
    head -c 3000000 /bin/uzram > "/mnt/$round"
    sync
    sleep 1
done
echo 3 > /proc/sys/vm/drop_caches
for round in 1 2 3 4 5 6; do cmp -n 3000000 "/mnt/$round" /bin/uzram; done
umount /mnt
e2fsck -f -n /dev/vda
if dmesg | grep -i 'i/o error'; then exit 1; fi
