# NBD over vsock, by the number with which the guest knows itself: libnbd's programs and socat connect.
fail() {
    echo "$1"
    cat /tmp/said
    exit 1
}
# Runs its words, which must fail and say the first one.
refused() {
    why=$1
    shift
    if timeout 20 "$@" > /tmp/said 2>&1; then fail "not refused: $*"; fi
    grep -q "$why" /tmp/said || fail "refused without \`$why\`: $*"
}
serve='uzram serve --size 64M --algorithm lz4'
uri=nbd+vsock://1:10809/disk

rmmod vsock_loopback vmw_vsock_virtio_transport_common vsock
refused 'this kernel has no vsock; load its module' $serve --listen vsock:10809 --insecure
while read -r file _; do insmod "$file"; done < /etc/modules

refused 'vsock:10809: other machines' $serve --listen vsock:10809
$serve --name disk --listen vsock:10809 --insecure --log-level info > /tmp/welcome 2> /tmp/log &
server=$!
until uzram stat disk > /dev/null 2>&1; do sleep 0.1; done
cp /tmp/log /tmp/said
grep -q 'sandbox: seccomp, landlock' /tmp/log || fail 'no sandbox'
cp /tmp/welcome /tmp/said
grep -q "URI='$uri'" /tmp/welcome || fail 'the welcome lacks the URI'
uzram list > /tmp/said
grep -q "$uri" /tmp/said || fail 'no address in list'
uzram stat disk > /tmp/said
grep -q "$uri" /tmp/said || fail 'no address in stat'
refused 'choose another port' $serve --name other --listen vsock:10809 --insecure

test "$(socat -u VSOCK-CONNECT:1:10809,readbytes=8 -)" = NBDMAGIC
test "$(nbdinfo --size "$uri")" = $((64 << 20))
nbdcopy /bin/uzram "$uri"
bytes=$(stat -c %s /bin/uzram)
nbdcopy "$uri" /tmp/back
cmp -n "$bytes" /bin/uzram /tmp/back
rm /tmp/back

# A reader that does not go on holds its connection.
nbdcopy "$uri" - | { sleep 3; cat > /dev/null; } &
reader=$!
until [ "$(uzram stat disk --json | sed -n 's/.*"connections": *\([0-9]*\).*/\1/p')" -ge 1 ]; do sleep 0.1; done
refused 'vsock 1:' uzram remove disk
wait "$reader"

# A server that has given up what it does not need may still listen at a further port.
uzram add --size 1M --name more --listen vsock:10810 --insecure
test "$(nbdinfo --size nbd+vsock://1:10810/more)" = $((1 << 20))
kill "$server"
wait "$server"

ran=$($serve --name run --listen vsock:10811 --insecure --run 'echo "$uri"; nbdinfo --size "$uri"' 2> /tmp/said)
test "$ran" = "nbd+vsock://1:10811/run
$((64 << 20))" || fail "--run said $ran"

mkdir /tmp/trusted
cp /test/certificate.pem /tmp/trusted/ca-cert.pem
$serve --name disk --listen vsock:10809 --tls-cert /test/certificate.pem --tls-key /test/key.pem > /tmp/welcome &
server=$!
until uzram stat disk > /dev/null 2>&1; do sleep 0.1; done
grep -q "URI='nbds+vsock://1:10809/disk'" /tmp/welcome || fail 'the welcome lacks TLS'
refused TLS nbdinfo "$uri"
size=$(nbdinfo --size "nbds+vsock://1:10809/disk?tls-certificates=/tmp/trusted")
test "$size" = $((64 << 20))
kill "$server"
wait "$server"

echo "$bytes bytes over vsock and back" > /out/remark
