# Block devices beside each other. An emulated CPU's figures are for information only.
for algorithm in lz4 zstd; do
    uzram bench devices --quick --algorithm "$algorithm" --against tmpfs-loop --against kernel-zram \
        --against kernel-brd --json "/out/$algorithm.json" > "/out/$algorithm.txt" 2> /tmp/progress ||
        { cat /tmp/progress; exit 1; }
    cat "/out/$algorithm.txt"
    for side in ublk loop kernel-zram kernel-brd tmpfs-loop; do
        grep -q "$side" "/out/$algorithm.txt"
    done
done
echo "figures, for information only: files/lz4.txt, files/zstd.txt" > /out/remark
