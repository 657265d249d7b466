#!/bin/sh
# Runs in lab/guest: a cluster of one node with scratch on an ext4 with project quota, and jobs that write more than they
# requested. $1 the agent, $2 the CLI, $3 an image of the file system.
agent=$1 lattice=$2 image=$3
export LATTICE_ENDPOINT=unix:/tmp/dev/agent.sock LATTICE_LOG=warn XDG_STATE_HOME=/tmp/state
fail() { echo "FAILED: $*"; tail -n 30 /tmp/dev.log; exit 1; }
# Launches run as an ordinary user, because root may exceed every quota.
launch() { su -m -s /bin/sh nobody -c "cd /tmp && $lattice launch $*"; }
mkdir /scratch && mount -o loop,prjquota "$image" /scratch || fail "the file system cannot be mounted"
mkdir -m 1777 /tmp/state
$agent dev --dir /tmp/dev --scratch-dir /scratch >/tmp/dev.log 2>&1 &
i=0
until $lattice nodes 2>/dev/null | grep -q Ready; do
  i=$((i + 1)); [ $i -lt 100 ] || fail "the node does not become Ready"
  sleep 1
done
$lattice node status | grep "scratch:" && fail "its size is kept to, and said not to be"
$lattice nodes | grep "scratch" && fail "the node registers that it cannot"

# Writes within the size succeed; writes beyond it fail.
cat >/tmp/write <<'END'
head -c 6000000 /dev/zero >$LATTICE_SCRATCH/a && echo six
head -c 6000000 /dev/zero >$LATTICE_SCRATCH/b || echo refused
du -k $LATTICE_SCRATCH | tail -n 1 | cut -f 1
END
launch --scratch-per-node 8MiB -- /bin/sh /tmp/write >/tmp/out 2>/tmp/err
grep -q six /tmp/out || fail "six megabytes do not fit into eight: $(cat /tmp/out /tmp/err)"
grep -q refused /tmp/out || fail "it is not told: $(cat /tmp/out /tmp/err)"
kib=$(tail -n 1 /tmp/out)
[ "$kib" -le 8200 ] || fail "$kib KiB were written"
# Each job has its own size: what an earlier job left does not count.
for i in 1 2 3 4 5 6 7 8; do
  launch --scratch-per-node 8MiB -- /bin/sh -c "'head -c 7000000 /dev/zero >\$LATTICE_SCRATCH/a'" || fail "job $i"
done
i=0
until [ -z "$(ls /scratch | grep -v lost+found)" ]; do
  i=$((i + 1)); [ $i -lt 20 ] || fail "left: $(ls /scratch)"
  sleep 1
done
# Without a requested size, only the disk limits the job.
launch -- /bin/sh -c "'head -c 20000000 /dev/zero >\$LATTICE_SCRATCH/a'" || fail "a limit where none was asked for"
echo "all of it held"
