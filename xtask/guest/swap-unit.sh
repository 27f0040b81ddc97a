# Swap on a disk with units of 4 KiB, also where the kernel's pages are larger: a program that uses more memory than
# there is finds all of it.
page_kib=$(awk '/KernelPageSize/ { print $2; exit }' /proc/self/smaps)
# As `uzram up` sets them: FUSE and the loop driver need memory to pass a page on.
echo 1000 > /proc/sys/vm/watermark_scale_factor
echo 0 > /proc/sys/vm/watermark_boost_factor
uzram serve --size 256M --unit 4K --for-swap --name small --attach loop > /tmp/served 2>&1 &
server=$!
until uzram stat small > /tmp/said 2> /dev/null; do
    kill -0 "$server" || { cat /tmp/served; exit 1; }
    sleep 0.1
done
disk=$(sed -n 's/ *endpoint *\(\/dev\/[a-z0-9]*\).*/\1/p' /tmp/said)
mkswap "$disk"
swapon "$disk"
ram_kib=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
# Nice, since a program that outruns what the kernel and the server do for a page can stall a machine of one CPU.
renice -n 19 -p $$
eat $((ram_kib * 1024 + (32 << 20)))
swapped_mib=$(($(sed -n 's/pswpout //p' /proc/vmstat) * page_kib / 1024))
[ "$swapped_mib" -ge 32 ]
uzram stat small > /out/stat
grep -q 'failed_writes *0' /out/stat
swapoff "$disk"
uzram remove small
echo "pages of $page_kib KiB, units of 4 KiB, $swapped_mib MiB swapped out" > /out/remark
