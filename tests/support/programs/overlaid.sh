# overlaid.sh BASE LOWER: an overlay of LOWER's files with a tmpfs above, for as long as it runs.
set -e
mount -t tmpfs -o mode=755 nvc-test "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" nvc-test "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=755 run "$1/root/run"
mount -t tmpfs -o mode=1777 tmp "$1/root/tmp"
# The index of all manual pages is not what is tested, and takes longer than that.
rm -f "$1/root/var/lib/man-db/auto-update"
echo ready
exec sleep 600
