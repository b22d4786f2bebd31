#!/bin/sh
# Run by `in_a_box` in namespaces of its own (unshare --net --mount --pid --fork): a machine that has the files of a folder, and
# of this one's network `lo` alone. Arguments: a folder to work in, that with the files, a file that the machine gets, which
# of the scripts beside this one it runs, and what that is given.
set -eu
work=$1 files=$2 file=$3 script=$4
shift 4
ip link set lo up
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=$files,upperdir=$work/upper,workdir=$work/work" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mkdir "$work/root/mnt/given"
cp "$file" "$work/root/mnt/given/"
cp "${0%/*}"/*.sh "$work/root/mnt/"
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive
exec chroot "$work/root" sh "/mnt/$script.sh" "$@"
