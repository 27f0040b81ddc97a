# The guest is the machine that tests expect; a file comes in and goes out unchanged.
test "$(nproc)" = "$CPUS"
test "$$" != 1
ping -c 1 127.0.0.1
cp /bin/busybox /out/busybox
echo "Linux $(uname -r), $(nproc) CPUs" > /out/remark
