# enter_userland.sh ROOT PYTHON LIBRARY SHARES CRIO COMMAND...: the command with ROOT as its root. Run with -eu.
# SHARES, CRIO: directories that are there too, where the host's shares are and where CRI-O was built, or "".
root=$1 python=$2 library=$3 shares=$4 crio=$5; shift 5
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
for directory in "$shares" "$crio"; do
    [ -z "$directory" ] || { mkdir -p "$directory" "$root$directory"; mount --bind "$directory" "$root$directory"; }
done
cd "$root" && pivot_root . run/old && cd / && umount -l /run/old && rmdir /run/old && exec "$@"
