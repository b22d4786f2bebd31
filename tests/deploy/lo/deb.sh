# Our package by itself, on a machine that has what it depends on. Argument: the package's name.
set -eu
. /mnt/serve.sh
# What could answer in the package's place on this machine, and isn't on a box.
rm -rf "$HOME/.cache" /usr/local/bin/penstock /opt/penstock
dpkg --force-confold -i /mnt/given/*.deb >&2
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
serve --config /etc/penstock/server.properties
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
