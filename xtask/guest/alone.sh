# The static binary serves from a root directory that holds nothing else: no /dev, no /proc, no libraries.
mkdir /alone
cp /bin/uzram /alone/uzram
chroot /alone /uzram serve --size 32M --name disk --algorithm lz4 --socket /socket &
server=$!
until [ -S /alone/socket ]; do
    kill -0 "$server"
    sleep 0.1
done
nbd-client -unix /alone/socket /dev/nbd0 -name disk -block-size 4096
dd if=/bin/uzram of=/dev/nbd0 bs=64k conv=fsync 2> /dev/null
echo 3 > /proc/sys/vm/drop_caches
cmp -n "$(stat -c %s /bin/uzram)" /bin/uzram /dev/nbd0
nbd-client -d /dev/nbd0
kill "$server"
wait "$server"
echo "$(uzram --version), $(stat -c %s /bin/uzram) bytes" > /out/remark
