# The kernel's NBD client over TLS: its helper holds the connection, encrypts, and hands plain bytes to the
# kernel. What is written so is read back by a second attachment, and nobody gets in without TLS.
uzram serve --size 32M --name disk --algorithm lz4 --listen 127.0.0.1:10809 \
    --tls-cert /test/certificate.pem --tls-key /test/key.pem --tls-required &
server=$!
until uzram stat disk > /dev/null 2>&1; do sleep 0.1; done

attach() {
    nbd-client 127.0.0.1 10809 /dev/nbd0 -name disk -block-size 4096 "$@"
}
if attach 2> /tmp/refused; then exit 1; fi
grep -i tls /tmp/refused
if attach -enable-tls -cacertfile /test/certificate.pem -tlshostname elsewhere; then exit 1; fi

attach -enable-tls -cacertfile /test/certificate.pem -tlshostname localhost
test "$(cat /sys/block/nbd0/size)" = $((32 << 11))
dd if=/bin/uzram of=/dev/nbd0 bs=64k count=96 conv=fsync 2> /dev/null
nbd-client -d /dev/nbd0

attach -enable-tls -cacertfile /test/certificate.pem -tlshostname localhost
cmp -n $((6 << 20)) /bin/uzram /dev/nbd0
nbd-client -d /dev/nbd0
held=$(uzram stat disk --raw | awk 'NR == 1 { print $1 }')
test "$held" -ge $((6 << 20))

kill "$server"
wait "$server"
echo "$held bytes through TLS and back" > /out/remark
