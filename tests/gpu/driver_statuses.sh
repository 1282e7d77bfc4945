#!/bin/sh
# Makes the same random harmless calls on the simulated manager and on this machine's driver, and compares the statuses.
# usage: tests/gpu/driver_statuses.sh [SEQUENCES]     default: 100 sequences of 40 calls, from seed 1 on; 400 at most: two machines stopped
# answering while 1,500 others were made (docs/measured/h100-580-driver.md), and which call it was is not known
# Needs a C compiler, /dev/nvidiactl and /dev/nvidia0. What is compared, and each first difference of a sequence, is printed;
# both lists of statuses stay in $OUT (default: build/driver-statuses). 1 if there is a difference.
set -eu
cd "$(dirname "$0")/../.."
sequences=${1:-100}
if [ "$sequences" -gt 400 ]; then
    echo "driver_statuses.sh: $sequences sequences: 400 at most, because others may hang the machine" >&2
    exit 2
fi
out=${OUT:-build/driver-statuses}
version=$(sed -n '1s/.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version)
program=$PWD/native/../build/native/driver_statuses
make -s -C native "$program"
mkdir -p "$out"
"$program" sim "$version" "$sequences" 1 >"$out/simulated.txt"
timeout 110 "$program" real "$version" "$sequences" 1 >"$out/driver.txt"
"$program" compare "$out/simulated.txt" "$out/driver.txt"
