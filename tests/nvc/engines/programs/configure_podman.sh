# configure_podman.sh PLACE CHECKOUT PYTHON CGROUP: Podman starts a container with our hook configured, and one without.
set -e
mount -t tmpfs none /etc/containers
# runc keeps its states in /run/runc, those of detached containers longer than this script.
mount -t tmpfs none /run
printf '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
cp "$1/containers.conf" "$1/storage.conf" /etc/containers/
cd "$2"
parent=$4
run() {
    set -- --cgroup-parent="/$parent" --rootfs "$1/rootfs"
    podman run --detach --rm --network=none --log-driver=none --pids-limit=0 "$@" /bin/busybox true
}
"$3" -m nvc runtime configure --runtime=podman --hook-path="$1/nvc-hook"
run "$1"
"$3" -m nvc runtime configure --runtime=podman --remove
run "$1"
ls /etc/containers/containers.conf.d /etc/containers/oci/hooks.d
