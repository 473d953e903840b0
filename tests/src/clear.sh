# Waits for the end of its input, which comes with the end of the test however that ends. Then clears away what is in $DIR,
# and fails where that can't be done.
read -r _

# Whoever works there, or was started out of it; none of these commands has it among its arguments when it's looked for.
living() {
    printf %s "$DIR" | grep -lsF -f - /proc/[0-9]*/cmdline | cut -d / -f 3
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$DIR*" 2> /dev/null | cut -d / -f 3
}

looks=0
while pids=$(living) && [ -n "$pids" ]; do
    kill -KILL $pids 2> /dev/null
    [ "$((looks += 1))" -lt 1000 ] || exit 1
    sleep 0.01
done

# Those that agents would have taken away with the instances: driftless/UID-RUN for .../instances/NAMESPACE_NAME_UID/runs/RUN.
find "$DIR" -type d -path '*/instances/*/runs/*' -prune 2> /dev/null | while read -r run; do
    uid=${run%/runs/*}
    group=${uid##*_}-${run##*/}
    rmdir "/sys/fs/cgroup/driftless/$group" /sys/fs/cgroup/*/driftless/"$group" 2> /dev/null
done

grep -F " $DIR/" /proc/mounts | cut -d ' ' -f 2 | while read -r mount; do umount --lazy "$mount"; done
rm -rf "$DIR"
