#!/bin/sh
# Run by test_package.py in namespaces of its own (unshare --net --mount --pid --fork): a machine that has the files of this
# one, none of its network but `lo`, and our package. Arguments: folder to work in, the .deb, the package's name.
set -eu
work=$1 deb=$2 package=$3
ip link set lo up
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mkdir -p "$work/root/mnt/deb"
cp "$deb" "$work/root/mnt/deb/"
# What could answer in the package's place on this machine, and isn't on a box.
rm -rf "$work/root/root/.cache" "$work/root/usr/local/bin/penstock" "$work/root/opt/penstock"
cat > "$work/root/mnt/inside" <<'INSIDE'
set -eu
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 HOME=/root
dpkg --force-confold -i /mnt/deb/*.deb >&2
getent passwd penstock | cut -d: -f6,7
readlink /opt/penstock/current
runuser -u penstock -- penstock --version
mkdir -p /srv/penstock/a
chown penstock:penstock /srv/penstock/a
touch /mnt/before
printf 'log.dirs=/srv/penstock/a\nlisteners=PLAINTEXT://127.0.0.1:9092\n' > /etc/penstock/server.properties
chown root:penstock /etc/penstock/server.properties
chmod 0640 /etc/penstock/server.properties
runuser -u penstock -- penstock broker --config /etc/penstock/server.properties --check
runuser -u penstock -- penstock broker --config /etc/penstock/server.properties > /mnt/out 2> /mnt/err &
broker=$!
tries=0
until grep -q 'started on' /mnt/out; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat /mnt/err >&2; exit 1; }
    sleep 0.1
done
seq 1000 | runuser -u penstock -- penstock produce numbers >&2
runuser -u penstock -- penstock consume numbers --from earliest | sort -n | tail -1
kill -TERM $broker
wait $broker || true
# Byte code came along: a service can't write it, and would compile at each start.
find /opt/penstock/current/ -newer /mnt/before | head -5
bare=$(find /opt/penstock/current/lib/ -name '*.py' | while read -r file; do
    compiled=${file%/*}/__pycache__/$(basename "${file%.py}").cpython-311.pyc
    [ -e "$compiled" ] || echo "$file"
done)
echo "without byte code: $bare"
systemd-analyze verify /opt/penstock/current/lib/systemd/system/*.service /opt/penstock/current/lib/systemd/system/*.timer 2>&1 |
    grep -i penstock || true
dpkg -r "$1" >&2
ls /opt/penstock 2> /dev/null || true
ls /etc/systemd/system | grep penstock || true
ls /srv/penstock/a | grep -c numbers-0
INSIDE
exec chroot "$work/root" sh /mnt/inside "$package"
