# A bundle, on a Debian that has next to nothing. Argument: the version.
set -eu
. /mnt/serve.sh
sed -n 's/^ *\(.*\):.*/\1/p' /proc/net/dev
mkdir /mnt/bundle
tar -xf /mnt/given/*.tar -C /mnt/bundle
cd /mnt/bundle
sha256sum --check --strict --quiet SHA256SUMS
echo 'deb [trusted=yes] file:/mnt/bundle ./' > /etc/apt/sources.list
apt-get -qq update >&2
apt-get -qq install --yes --no-install-recommends "penstock-$1" "penstock-etl-$1" xfsprogs fdisk chrony >&2
penstock --version
install -d -o penstock -g penstock -m 0700 /srv/penstock
serve --data /srv/penstock
# What a night needs beside Penstock came along.
java -version 2>&1 | sed -n 's/^openjdk version "\([0-9]*\).*/java \1/p'
/opt/penstock/current/bin/python3 -c 'import pyspark, deltalake; print("pyspark and deltalake")'
