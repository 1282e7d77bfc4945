#!/bin/sh
# A systemd as process 1 of pid, cgroup (v2) and mount namespaces of its own; ends with standard input.
# usage: run_systemd.sh CGROUP DIRECTORY    CGROUP: its name at the top of cgroup2. DIRECTORY: a file "gone" is made in
# it at the end; its file "links" has lines NAME TARGET, links in a /dev/char of its own
set -u
if [ "${3:-}" != inside ]; then
    for point in $(awk '$5 ~ "^/sys/fs/cgroup/" {print $5}' /proc/self/mountinfo); do umount "$point"; done
    [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || { umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup; } || exit 2
    mkdir "/sys/fs/cgroup/$1" || exit 2
    sh -c 'echo $$ > "/sys/fs/cgroup/$1/cgroup.procs" && exec unshare -C -p -m --propagation private -f --kill-child --mount-proc sh "$0" "$1" "$2" inside' "$0" "$1" "$2" &
    read -r _
    kill -KILL $!
    wait
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} + 2>/dev/null
        [ -d "/sys/fs/cgroup/$1" ] || break
        sleep 0.1
    done
    : >"$2/gone"
    exit 0
fi
umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 2
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/systemd && mkdir -p /run/systemd/system || exit 2
mkdir /run/dev && mount -t tmpfs -o mode=755 tmpfs /run/dev && mkdir /run/dev/char /run/dev/pts /run/dev/shm || exit 2
for name in null zero full random urandom tty ptmx; do cp -a "/dev/$name" /run/dev/; done
while read -r name target; do ln -s "$target" "/run/dev/char/$name"; done <"$2/links"
mount --rbind /dev/pts /run/dev/pts && mount --move /run/dev /dev || exit 2
# Nothing of the machine's units, whatever a unit of a test asks for: sysinit.target has systemd-tmpfiles empty /tmp, which is the machine's.
for directory in /lib/systemd/system /usr/lib/tmpfiles.d; do mount -t tmpfs tmpfs "$directory" || exit 2; done
printf '[Unit]\nDescription=nothing\nDefaultDependencies=no\n' >/run/systemd/system/nvc.target
exec env container=nvc-test /lib/systemd/systemd --system --unit=nvc.target --log-target=console --show-status=no
