# Sourced by the others: a broker with these arguments; prints the last of a thousand records that went through it.
serve() {
    runuser -u penstock -- penstock broker "$@" > /mnt/out 2> /mnt/err &
    broker=$!
    tries=0
    until grep -q 'started on' /mnt/out; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { cat /mnt/err >&2; exit 1; }
        sleep 0.1
    done
    seq 1000 | runuser -u penstock -- penstock produce numbers --create >&2
    runuser -u penstock -- penstock consume numbers --from earliest | sort -n | tail -1
    kill -TERM $broker
    wait $broker || true
}
