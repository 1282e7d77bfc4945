# enter_userland.sh ROOT PYTHON LIBRARY SHARES COMMAND...: the command with ROOT as its root. Run with -eu.
# SHARES: a directory that is there too, where the host's shares are, or "".
root=$1 python=$2 library=$3 shares=$4; shift 4
mount --bind "$root" "$root"
# The interpreter that the product's commands were installed for.
[ -e "$root$python" ] || touch "$root$python"
mkdir -p "$root$library"
mount --bind "$python" "$root$python"
mount --bind "$library" "$root$library"
for directory in proc sys dev; do mount --rbind /$directory "$root/$directory"; done
mount --rbind /tmp "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root/run/old"
[ -z "$shares" ] || { mkdir -p "$shares" "$root$shares"; mount --bind "$shares" "$root$shares"; }
cd "$root" && pivot_root . run/old && cd / && umount -l /run/old && rmdir /run/old && exec "$@"
