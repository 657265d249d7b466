#!/bin/sh
# Runs in lab/guest: a cluster of one node with memory limits in the v2 tree, and jobs that use more than they requested.
# $1 the agent, $2 the CLI, $3 a program that allocates LATTICE_TEST_HOG mebibytes.
agent=$1 lattice=$2 hog=$3
export LATTICE_ENDPOINT=unix:/tmp/dev/agent.sock LATTICE_LOG=warn
own=/sys/fs/cgroup/lattice-dev-0/agent
mkdir -p $own
(sh -c "echo \$PPID" >$own/cgroup.procs; export LATTICE_AGENT_MEMORY_MAX=512M; exec $agent dev --dir /tmp/dev >/tmp/dev.log 2>&1) &
fail() { echo "FAILED: $*"; tail -n 30 /tmp/dev.log; exit 1; }
i=0
until $lattice nodes 2>/dev/null | grep -q Ready; do
  i=$((i + 1)); [ $i -lt 100 ] || fail "the node does not become Ready"
  sleep 1
done
# The agent is in its own cgroup, with its own limit.
[ "$(cat $own/memory.max)" = $((512 << 20)) ] || fail "the agent's own memory is not limited: $(cat $own/memory.max)"
[ "$(cat /sys/fs/cgroup/lattice-dev-0/memory.max)" = max ] || fail "the limit is one on work"
$lattice node status | grep "limits:" && fail "all limits are there, and one is said to be missing"

# The whole launch is killed. Its exit code, its output, `status` and `explain` show why.
$lattice launch -n 2 --cores 1 --mem 64M -- /bin/sh -c "if [ \$LATTICE_RANK = 0 ]; then LATTICE_TEST_HOG=256 $hog; else sleep 300; fi" 2>/tmp/err
code=$?
[ $code = 137 ] || fail "launch gave $code: $(cat /tmp/err)"
grep -q "out of memory" /tmp/err || fail "launch does not say it: $(cat /tmp/err)"
$lattice status @last | grep "^Reason:" | grep "out_of_memory on dev: launch 1 was killed" | grep "the allocation's limit is 64 MiB" || fail "$($lattice status @last)"
$lattice explain @last | grep "ask for more with --mem" || fail "$($lattice explain @last)"
$lattice logs @last 2>&1 | grep "lattice: out of memory" || fail "the log does not say it: $($lattice logs @last 2>&1)"

# A script is killed with all processes that it started; the node continues.
printf '#!/bin/sh\nsleep 300 &\nLATTICE_TEST_HOG=256 %s\necho survived\n' "$hog" >/tmp/script
id=$($lattice submit -o name --mem 64M --walltime 5m /tmp/script)
$lattice logs -f "$id" >/tmp/out 2>&1
code=$?
[ $code = 137 ] || fail "the script gave $code: $(cat /tmp/out)"
grep survived /tmp/out && fail "the script lived on"
$lattice status "$id" | grep "out_of_memory on dev: the script was killed" || fail "$($lattice status "$id")"
# An allocation continues after one of its launches was killed. Such kills are counted for the allocation and the node.
id=$($lattice submit -o name --mem 64M --walltime 5m -- sleep 300)
i=0
until $lattice top "$id" 2>/dev/null | grep "^oom_kills  *0 "; do
  i=$((i + 1)); [ $i -lt 60 ] || fail "no count of kills: $($lattice top "$id" 2>&1)"
  sleep 1
done
$lattice launch --alloc "$id" -n 1 -- /bin/sh -c "LATTICE_TEST_HOG=256 $hog" 2>/tmp/err
code=$?
[ $code = 137 ] || fail "a launch of it gave $code: $(cat /tmp/err)"
i=0
until $lattice top "$id" 2>/dev/null | grep "^oom_kills  *[1-9]"; do
  i=$((i + 1)); [ $i -lt 60 ] || fail "the kill is not counted: $($lattice top "$id" 2>&1)"
  sleep 1
done
page=$(sed -n 's|.*\(http://127.0.0.1:[0-9]*/metrics\) (agent).*|\1|p' /tmp/dev.log)
wget -q -O - "$page" | grep "^lattice_node_oom_kills_total{.*} [1-9]" || fail "the node does not count it: $page"
$lattice cancel "$id" || fail "it cannot be cancelled"
# The values that a launch's ranks put into the shim use at most a quarter of the allocation's memory.
printf '%s\n' '#!/bin/sh' 'printf "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_my_kvsname\n" >&$PMI_FD' \
  'read -r _ <&$PMI_FD; read -r name <&$PMI_FD' \
  'exec awk -v kvs="${name##*kvsname=}" "BEGIN { value = sprintf(\"%1000s\", \"\"); gsub(/ /, \"x\", value);
     for (i = 0; i < 40000; i++) printf \"cmd=put kvsname=%s key=k%d value=%s\n\", kvs, i, value }" >&$PMI_FD' >/tmp/hoard
chmod 755 /tmp/hoard
id=$($lattice submit -o name --mem 48M --walltime 5m -- sleep 300)
i=0
scope=/sys/fs/cgroup/lattice-dev-0/workload.slice/alloc-$id.scope
until [ -n "$(cat "$scope"/work/launch-1/cgroup.procs 2>/dev/null)" ]; do
  i=$((i + 1)); [ $i -lt 60 ] || fail "it does not run: $($lattice status "$id")"
  sleep 1
done
shim=$(cat "$scope"/shim/cgroup.procs)
[ "$(cat /proc/"$shim"/oom_score_adj)" = -999 ] || fail "the shim is not spared"
for pid in $(cat "$scope"/work/launch-1/cgroup.procs); do
  [ "$(cat /proc/"$pid"/oom_score_adj)" = 0 ] || fail "work is spared: $pid"
done
$lattice launch --alloc "$id" -n 1 --pmi pmi1 -- /tmp/hoard 2>/tmp/err
[ -d /proc/"$shim" ] || fail "the shim ended: $(cat /tmp/err)"
held=$(cat "$scope"/shim/memory.peak)
[ "$held" -lt $((32 << 20)) ] || fail "a rank had its shim hold $held bytes, of 48 MiB that the allocation has"
$lattice launch --alloc "$id" -n 1 -- /bin/sh -c "LATTICE_TEST_HOG=24 $hog" || fail "the shim keeps the memory of a launch that ended"
$lattice cancel "$id" || fail "it cannot be cancelled"
# With enough memory the launch succeeds.
$lattice launch --mem 256M -- /bin/sh -c "LATTICE_TEST_HOG=32 $hog" || fail "32 MiB do not fit into 256"
echo "all of it held"
