# enter_kubernetes.sh COMMAND...: the command on a machine of its own for Kubernetes: directories that kubelet and containerd write to,
# network, process ids. Run with -eu as the first process of new mount, network and pid namespaces: its end ends all that it started.
ip link set lo up
# kubelet refuses a loopback address as the node's; the other one is that of the service `kubernetes`.
ip address add 10.99.0.1/32 dev lo
ip address add 10.98.0.1/32 dev lo
mount -t tmpfs -o mode=755 tmpfs /run
for directory in /etc /opt /var/lib /var/log; do
    above=/run/above$directory
    mkdir -p "$above" "$above.work"
    mount -t overlay -o "lowerdir=$directory,upperdir=$above,workdir=$above.work" overlay "$directory"
done
# An overlay cannot be the upper directory of another one.
mkdir -p /run/tmp /var/lib/containerd /var/lib/kubelet
mount -t tmpfs -o mode=755 tmpfs /var/lib/containerd
mount -t tmpfs -o mode=755 tmpfs /var/lib/kubelet
# kubelet sets these of the kernel's parameters, which are the whole machine's: it finds them as it wants them.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
    kernel/keys/root_maxbytes=25000000; do
    name=/run/sys/${setting%=*}
    mkdir -p "${name%/*}"
    echo "${setting#*=}" >"$name"
    mount --bind "$name" "/proc/sys/${setting%=*}"
done
# crun refuses hybrid cgroups.
if [ -n "${NVC_KUBERNETES_CRUN:-}" ]; then
    mount --bind "$NVC_KUBERNETES_CRUN" "$(command -v crun)"
    ! [ -d /sys/fs/cgroup/unified ] || umount /sys/fs/cgroup/unified
fi
mount --make-rshared /
TMPDIR=/run/tmp
export TMPDIR
# Not exec: the shell takes what orphans leave.
"$@" &
wait $!
