# Servers are killed KILLS times under each kind of disk in ATTACH: requests wait, and none fails or is lost.
pauses=''
for attach in ${ATTACH:-ublk loop}; do
    serve --attach "$attach"
    disk=$(told endpoint)
    [ -b "$disk" ] || fail "$attach: $disk: $(cat /tmp/served)"
    under_fio
    pauses="$pauses $attach $pause"
    under_ext4
    all_survived
    leaves_nothing
    [ -z "$(ls /dev/ublkb* 2> /dev/null)" ] || fail "left: $(ls /dev/ublk*)"
done
if dmesg | grep -i 'i/o error'; then fail 'the kernel saw errors'; fi
echo "$kills kills each;$pauses" > /out/remark
