#!/bin/sh
# Run by `unshare --mount`: a command on this machine, with an /etc, /opt and /run of its own that go with it. In /opt Penstock
# lies as the package has it. Arguments: a folder to work in, what runs as `penstock`, and the command.
set -eu
work=$1 penstock=$2
shift 2
mount -t tmpfs tmpfs "$work"
for folder in etc opt; do
    mkdir -p "$work/$folder/upper" "$work/$folder/work"
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$work/$folder/upper,workdir=$work/$folder/work" "/$folder"
done
mount -t tmpfs tmpfs /run
rm -rf /etc/penstock /opt/penstock
mkdir -p /etc/penstock /opt/penstock/old/bin
ln -s old /opt/penstock/current
ln -s "$penstock" /opt/penstock/old/bin/penstock
exec "$@"
