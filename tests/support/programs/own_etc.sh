# own_etc.sh SCRATCH COMMAND...: /etc is the machine's with a layer on top; containers and cdi begin empty.
set -e
mount -t tmpfs tmpfs "$1/over"
mkdir "$1/over/up" "$1/over/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/over/up,workdir=$1/over/work" /etc
rm -rf /etc/containers /etc/cdi
mkdir -p /etc/containers /etc/cdi
cp "$1/containers.conf" /etc/containers/
cp "$1/policy.json" /etc/containers/
shift
exec "$@"
