#!/bin/sh
# Starts systemd as the init process of new namespaces, with the agent's unit: `boot.sh ROOT BINARY UNIT`.
# /usr is this machine's. Everything else is new, so that no other unit of this machine starts.
set -eu
root=$1 binary=$2 unit=$3

mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/usr" "$root/etc/systemd/system" "$root/run" "$root/var" "$root/tmp" "$root/proc" "$root/sys" \
    "$root/dev" "$root/root" "$root/old" "$root/overlay/upper" "$root/overlay/work"
for directory in bin sbin lib lib64; do
    ln -s "usr/$directory" "$root/$directory"
done
mount -t overlay -o "lowerdir=/usr,upperdir=$root/overlay/upper,workdir=$root/overlay/work" overlay "$root/usr"
cp "$binary" "$root/usr/bin/weir"
cp "$unit" "$root/etc/systemd/system/"
printf '[Unit]\nDescription=The host is up\n' >"$root/etc/systemd/system/host.target"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t bpf bpf "$root/sys/fs/bpf"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
mount -t tmpfs tmpfs "$root/run"
mount --bind /dev "$root/dev"
cd "$root"
pivot_root . old
cd /
umount -l /old
# On a host, systemd does this itself. In a container it does not, and then units would not see new mounts.
mount --make-rshared /
container=lxc exec /usr/lib/systemd/systemd --system --unit=host.target --log-target=null
