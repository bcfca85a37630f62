# A node's first process, in namespaces of its own. Arguments: the node's directory, its name.
# What a node writes, it writes to memory: the machine's own files shine through and stay as they are.
directory=$1
hostname "$2"
mkdir -p "$directory/memory"
mount -t tmpfs node "$directory/memory"
for tree in etc opt var; do
    mkdir -p "$directory/memory/$tree/upper" "$directory/memory/$tree/work"
    mount -t overlay node -o "lowerdir=/$tree,upperdir=$directory/memory/$tree/upper,workdir=$directory/memory/$tree/work" "/$tree"
done
mount -t tmpfs node /run
# Containers' file systems are overlays again, which cannot lie on one.
mkdir -p /var/lib/containerd /var/lib/kubelet /var/lib/cni/results /etc/cni/net.d /opt/cni/bin /run/netns
mount -t tmpfs node /var/lib/containerd
mount -t bpf bpf /sys/fs/bpf
# The kubelet wants these values, for the whole machine. It sees them, and the machine keeps its own.
set_aside() {
    mkdir -p "$directory/memory/settings"
    echo "$2" > "$directory/memory/settings/${1##*/}"
    mount --bind "$directory/memory/settings/${1##*/}" "/proc/sys/$1"
}
set_aside vm/overcommit_memory 1
set_aside vm/panic_on_oom 0
set_aside kernel/panic 10
set_aside kernel/panic_on_oops 1
set_aside kernel/keys/root_maxkeys 1000000
set_aside kernel/keys/root_maxbytes 25000000
mount --make-rshared /
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
ip link set lo up
touch "$directory/ready"
# Whoever is left without a parent is this one's child: waiting for one collects them all.
while :; do sleep 3600 & wait; done
