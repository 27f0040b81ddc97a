# The benchmark runs beside the kernel's zram. An emulated CPU's figures are for information only.
cat /bin/uzram /bin/busybox /proc/kallsyms | head -c $((4 << 20)) > /tmp/guest.pages
uzram bench store --against kernel-zram --quick --threads 1 --algorithm zstd --algorithm deflate \
    --corpus /tmp/guest.pages --json /out/bench.json > /out/bench.txt 2> /tmp/progress ||
    { cat /tmp/progress; exit 1; }
cat /out/bench.txt
grep -q kernel-zram-4k /out/bench.txt
echo "figures, for information only: files/bench.txt" > /out/remark
