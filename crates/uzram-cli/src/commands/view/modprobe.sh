#!/bin/sh
# modprobe and rmmod of a view of uzram: the module zram is disks of uzram; others are the system's.
name=${0##*/}
remove=no
module=
count=1
[ "$name" = rmmod ] && remove=yes
for word; do
    case $word in
        -r | --remove) remove=yes ;;
        -*) ;;
        num_devices=*) count=${word#*=} ;;
        *) [ -n "$module" ] || module=$word ;;
    esac
done
if [ "$module" != zram ]; then
    PATH=${PATH#*:}
    exec "$name" "$@"
fi
control=/sys/class/zram-control
if [ $remove = yes ]; then
    for disk in /sys/block/zram*; do
        [ -e "$disk" ] || continue
        number=${disk##*zram}
        echo 1 >"$disk/reset" && echo "$number" >$control/hot_remove || exit 1
    done
    exit 0
fi
set -- /sys/block/zram*
[ -e "$1" ] && exit 0
while [ "$count" -gt 0 ]; do
    cat $control/hot_add >/dev/null || exit 1
    count=$((count - 1))
done
