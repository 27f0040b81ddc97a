# The kernel's zram and ours beside it: the same values written to the same files about pages that nobody uses, in
# the same order. What is said and what is left must be the same. Debian's module has no secondary codecs.
mount -t debugfs debug /sys/kernel/debug
mkdir /tree
uzram serve --tree /tree --tree-files /dev --ages --attach loop > /tmp/served 2> /tmp/log &
server=$!
until [ -e /tree/class/zram-control/hot_add ]; do kill -0 "$server"; sleep 0.1; done
[ "$(cat /tree/class/zram-control/hot_add)" = 0 ]
disk=/sys/block/zram0
[ ! -e $disk/recomp_algorithm ] || echo 'recompression could be compared too' > /out/remark

# Words that pack well and noise.
yes 'a page of words that packs well' | head -c 65536 > /tmp/words
head -c 65536 /dev/urandom > /tmp/noise
# One for each, as small as one that is soon full.
for small in 1 2; do
    head -c 65536 /dev/zero > /tmp/small$small
    losetup /dev/loop$((small + 5)) /tmp/small$small
done

# A write, and its errno in the system's words.
attempt() {
    said=$(printf %b "$2" | dd of="$disk/$1" bs=4096 2>&1 | sed -n 's/^dd: .*: //p')
    echo "$1 '$2': ${said:-done}"
}
# The kernel keeps a limit over a reset, although its document says otherwise.
reset() {
    attempt reset 1
    attempt writeback_limit_enable 0
    attempt writeback_limit 0
}
counts() {
    echo "bd_stat $(cat "$disk/bd_stat")"
    echo "limit $(cat "$disk/writeback_limit") $(cat "$disk/writeback_limit_enable")"
    # Content, and pages that are one word or do not pack. Memory is each one's own.
    awk '{ print "mm_stat", $1, $6, $8, $9 }' "$disk/mm_stat"
}
state() {
    # Times are each one's own.
    sed 's/\([0-9]\) *[0-9]*\.[0-9]*/\1/' "$blocks" 2>&1 | sed 's/.*: //'
    counts
}
values() {
    for value in '\n' 0 1 2 -1 +1 x y n 1x ' 1' '1 ' '1\n' '1\n\n' 0x3 010 4294967295 4294967296 \
        18446744073709551615 18446744073709551616 all 'all\n' ALL idle 'idle\n' 'idle ' ' idle' IDLE huge huge_idle \
        incompressible page_index=0 'page_index=1\n' page_index=0x1 page_index= page_index page_index=x \
        page_index=-1; do
        case "$1 $value" in
            # Ages that are near: time passes. An age in other digits is not known to us.
            'idle 1' | 'idle 2' | 'idle +1' | 'idle 1\n' | 'idle 0x3' | 'idle 010') continue ;;
            # The kernel's arithmetic goes over, and marks all.
            'idle 18446744073709551615') continue ;;
            # Newer kernels take blanks, as we do.
            'writeback idle ' | 'writeback  idle') continue ;;
        esac
        attempt "$1" "$value"
        [ -n "$said" ] || state
    done
    # Refusals have changed nothing.
    state
}
put() { dd if="$1" of="$node" bs=4096 seek="$2" count=16 conv=notrunc,fsync oflag=direct 2> /dev/null; }
get() { dd if="$node" bs=4096 skip="$1" count="$2" iflag=direct 2> /dev/null | md5sum; }
fill() {
    put /tmp/words 0
    put /tmp/noise 16
    put /dev/zero 32
}
sequence() {
    echo '--- without a size'
    for file in idle writeback writeback_limit writeback_limit_enable; do values $file; done
    for value in '' /dev /dev/nowhere /dev/null "$backing\n"; do
        attempt backing_dev "$value"
        basename "$(cat "$disk/backing_dev")" | tr 0-9 N
    done
    reset
    cat "$disk/backing_dev"
    echo '--- with a size, without a backing device'
    attempt disksize 4M
    attempt backing_dev "$backing"
    fill
    state
    for file in idle writeback_limit writeback_limit_enable; do values $file; done
    # Newer kernels say so before they look at the value, as we do.
    for value in idle huge huge_idle page_index=0; do attempt writeback $value; done
    reset
    echo '--- with both'
    attempt backing_dev "$backing"
    attempt disksize 4M
    fill
    state
    for file in idle writeback_limit writeback_limit_enable; do values $file; done
    attempt writeback_limit_enable 0
    attempt idle all
    state
    # Use takes the mark away.
    get 3 2
    put /tmp/words 16
    state
    values writeback
    get 0 64
    state
    attempt idle all
    attempt writeback idle
    state
    blkdiscard -o 0 -l 32768 "$node"
    state
    reset
    counts
    echo '--- a limit'
    attempt backing_dev "$backing"
    attempt disksize 4M
    fill
    attempt writeback_limit_enable 1
    attempt writeback huge
    counts
    # Which of pages as large go first is each one's own.
    attempt writeback_limit 5
    attempt writeback huge
    counts
    # Without pages that would go, newer kernels say nothing of the limit, as we do.
    attempt writeback huge
    attempt writeback page_index=2
    counts
    attempt writeback_limit 100
    attempt writeback huge
    counts
    attempt writeback page_index=2
    attempt writeback page_index=2
    attempt writeback page_index=33
    attempt writeback page_index=100
    state
    reset
    counts
    echo '--- a small backing device'
    attempt backing_dev "$small"
    attempt disksize 4M
    fill
    attempt writeback huge
    counts
    attempt idle all
    attempt writeback idle
    counts
    get 0 64
    reset
    counts
}

blocks=/sys/kernel/debug/zram/zram0/block_state node=/dev/zram0 backing=/dev/ram0 small=/dev/loop6
echo lz4 > "$disk/comp_algorithm"
sequence > /out/kernel 2>&1
disk=/tree/block/uzram0
blocks=/tree/debug/zram/uzram0/block_state backing=/dev/ram1 small=/dev/loop7
node=$(grep -l uzram0 /sys/block/loop*/loop/backing_file)
node=/dev/$(echo "$node" | cut -d/ -f4)
sequence > /out/ours 2>&1
sed -i "s|/dev/ram[01]|BACKING|; s|/dev/loop[67]|SMALL|" /out/kernel /out/ours
if ! diff /out/kernel /out/ours > /out/diff; then
    head -60 /out/diff
    cat /tmp/log | tail -20
    exit 1
fi
wc -l < /out/kernel | sed 's/$/ lines alike/' >> /out/remark
kill "$server"
wait "$server"
