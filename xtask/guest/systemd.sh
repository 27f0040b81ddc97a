# The package's units under a running systemd: boot to swap, SIGHUP, watchdog, stop, a socket for a group, a mount, an
# upgrade and a removal with disks up.
exec > /dev/console 2>&1
set -x
until state=$(systemctl is-system-running) || [ "$state" = degraded ]; do sleep 1; done
systemctl list-units --failed --no-legend
show() { systemctl show --value --property "$2" "$1"; }
names() { uzram "$@" list --noheadings --raw -o NAME | sort | tr '\n' ' '; }
service() { names --control-dir /run/uzram-service; }

# Boot to swap, with the options of /etc/default/uzram.
systemctl is-active uzram-swap uzram
test "$(awk 'NR == 2 { print int($3 / 1024), $5 }' /proc/swaps)" = '127 7'
test "$(names)" = 'swap0 '
# The service has a user of its own, and a directory beside root's.
pid=$(show uzram MainPID)
test "$(stat -c %U "/proc/$pid")" = uzram
test "$(service)" = 'first '

# SIGHUP: what is new in the file is served by the same process.
printf '[second]\nsize = "16M"\n' >> /etc/uzram/uzram.toml
systemctl reload uzram
until [ "$(service)" = 'first second ' ]; do sleep 0.5; done
test "$(show uzram MainPID)" = "$pid"

# A server that does not answer is replaced.
kill -STOP "$pid"
until [ "$(show uzram NRestarts)" = 1 ] && systemctl is-active uzram; do sleep 1; done
test "$(show uzram MainPID)" != "$pid"
test "$(service)" = 'first second '

# A stop takes the service's sockets along, and nothing of the swap.
systemctl stop uzram
test "$(show uzram Result)" = success
test ! -e /run/uzram-service
test "$(names)" = 'swap0 '
systemctl stop uzram-swap
test "$(show uzram-swap Result)" = success
test "$(wc -l < /proc/swaps)" = 1
systemctl start uzram-swap

# The group may connect, which starts the service; others may not.
systemctl start uzram.socket
test "$(stat -c '%a %U %G' /run/uzram.sock)" = '660 root uzram'
group=$(getent group uzram | cut -d : -f 3)
size() { setpriv --reuid 1000 --regid 1000 "$@" nbdinfo --size 'nbd+unix:///first?socket=/run/uzram.sock'; }
if size --clear-groups; then exit 1; fi
test "$(size --groups "$group")" = $((16 << 20))
systemctl is-active uzram

# A file system on a directory, until the unit stops.
systemctl start 'uzram-mount@mnt-scratch'
mountpoint /mnt/scratch
test "$(names)" = 'swap0 uzram0 '
echo kept > /mnt/scratch/file
systemctl stop 'uzram-mount@mnt-scratch'
if mountpoint /mnt/scratch; then exit 1; fi

# The commands of docs/recipes.
for page in /test/*.sh; do
    sh -eux "$page"
done

# An upgrade stops nothing.
pid=$(show uzram MainPID)
dpkg --install /test/uzram.deb > /tmp/upgrade
cat /tmp/upgrade
grep 'go on as they are: swap0 first second$' /tmp/upgrade
test "$(show uzram MainPID)" = "$pid"
systemctl is-active uzram uzram-swap

# A disk that no unit has started keeps the package; then the units are stopped in order.
systemd-run --unit hand uzram serve --size 16M --name hand
until [ "$(names)" = 'hand swap0 ' ]; do sleep 0.5; done
if dpkg --purge uzram 2> /tmp/refused; then exit 1; fi
cat /tmp/refused
grep 'first: uzram down hand$' /tmp/refused
if grep 'uzram down .*swap0\|down first' /tmp/refused; then exit 1; fi
systemctl is-active uzram uzram-swap
uzram down hand
systemctl start 'uzram-mount@mnt-scratch'
dpkg --purge uzram
test "$(wc -l < /proc/swaps)" = 1
if mountpoint /mnt/scratch; then exit 1; fi
test -z "$(systemctl list-units --failed --no-legend 'uzram*')"
test -z "$(pgrep -x uzram)"
test ! -e /usr/bin/uzram
test -z "$(find /etc/systemd/system -path '*.wants/uzram*.s*')"
echo "$(cut -d ' ' -f 1 /proc/uptime) s from the kernel's start to the end" > /out/remark
