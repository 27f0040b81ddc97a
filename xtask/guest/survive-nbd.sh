# The kernel's NBD client has a disk whose server is killed KILLS times, over a Unix socket and over TCP. By itself it does not
# connect again, so qemu-nbd does for it: requests wait, and none fails or is lost.
disk=/dev/nbd0
# qemu-nbd has a lock there.
mkdir -p /var/lock
mkfifo /tmp/pipe
said=''

for over in unix tcp; do
    [ "$over" = unix ] && listen='' || listen='--listen 127.0.0.1:10809'
    serve $listen
    endpoint=$(told endpoint)
    case $over in
        unix) server='server.type=unix,server.path=/run/uzram/d.nbd' ;;
        tcp) server='server.type=inet,server.host=127.0.0.1,server.port=10809' ;;
    esac
    qemu-nbd --fork --connect="$disk" --cache=none --discard=unmap \
        --image-opts "driver=nbd,$server,export=d,reconnect-delay=60"
    until [ "$(cat /sys/block/nbd0/size)" = $((64 << 11)) ]; do sleep 0.1; done
    under_fio
    slowest=$(sed -n 's/^ *lat (\(.\)sec).*max= *\([0-9.k]*\).*/\2 \1s/p' /tmp/verified | tr '\n' ' ')
    said="$said $over $pause, slowest request $slowest;"
    under_ext4

    # A program of libnbd ends with its connection. The next one sees all.
    nbdcopy "$endpoint" - > /tmp/pipe 2> /tmp/copied &
    copy=$!
    { head -c 1000000 > /dev/null; kill_it; cat > /dev/null; } < /tmp/pipe
    if wait "$copy"; then fail 'nbdcopy saw no end of its connection'; fi
    nbdcopy "$endpoint" /tmp/copy
    cmp "$disk" /tmp/copy
    rm /tmp/copy

    all_survived
    qemu-nbd --disconnect "$disk"
    leaves_nothing
done
if dmesg | grep -i 'i/o error'; then fail 'the kernel saw errors'; fi

# nbd-client, which connects once: its disk fails, and is whole again once it is attached anew.
serve
nbd-client -unix /run/uzram/d.nbd "$disk" -name d
mkfs.ext4 -q -F "$disk"
mount -t ext4 "$disk" /mnt
head -c 3000000 /bin/uzram > /mnt/file
sync
kill_it
nbd-client -d "$disk"
umount /mnt
nbd-client -unix /run/uzram/d.nbd "$disk" -name d
e2fsck -p "$disk" || [ $? = 1 ]
mount -t ext4 "$disk" /mnt
cmp -n 3000000 /mnt/file /bin/uzram
umount /mnt
nbd-client -d "$disk"
leaves_nothing
echo "$kills kills each;$said" > /out/remark
