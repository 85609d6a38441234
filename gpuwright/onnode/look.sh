# Look at a node that has no usable python3: files and outputs as they are, framed for
# gpuwright/capture.py, which makes the node document of them. Total, and changing nothing.
#
# POSIX sh. carry.py joins the lines into one: each is a whole command, or ends where a command
# may go on. $1 is the directory that stands for / (tests have others), $2... are paths whose
# disks are asked for. A frame is a line that begins with @, and lines that begin with a blank.

LC_ALL=C
export LC_ALL
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib"
export PATH
exec 2>/dev/null </dev/null
cd "$1/" || cd /
shift

# The command may not have an exclamation mark, which shells with a history would expand.
bang=$(printf "\041")
job="" guard="" reader="" watch=""

# shellcheck disable=SC2016  # awk's own dollars
# Printable ASCII only, behind a blank, and not without end. The status is 0 only where the last
# line says that a command ended well, 2 where nothing says how it ended. One process, awk, holds
# the connection: killed, it lets go of it.
keep='{ gsub(/[^ -~\t]/, "?"); if (length($0)) last = $0; if ($0 ~ /<supported_graphics_clock>/) next; size += length($0) + 1; if (size <= 1500000) print " " substr($0, 1, 20000) } END { if (last == "exit 0") exit 0; if (last == "exit 137") exit 2; if (last ~ /^exit /) exit 1; exit 2 }'

text() {
  if [ -f "$1" ] && [ -r "$1" ]; then
    echo "@file /$1"
    head -c 65536 "$1" | awk "$keep"
  fi
}

# after SECONDS PID: kill it then. It sleeps in short steps, so that little outlives us.
after() {
  count=0
  while [ "$count" -lt "$1" ] && sleep 1; do
    count=$((count + 1))
  done
  kill -9 "$2"
}

within() {
  limit=$1
  shift
  "$@" 2>&1 &
  eval "job=\$$bang"
  after "$limit" "$job" >/dev/null &
  eval "guard=\$$bang"
  wait "$job"
  status=$?
  kill "$guard"
  echo
  echo "exit $status"
}

# run SECONDS COMMAND...: a command that no signal ends (a stuck driver) keeps its own pipe only.
run() {
  limit=$1
  shift
  echo "@run $*"
  within "$limit" "$@" | head -c 4000000 | awk "$keep" &
  eval "reader=\$$bang"
  after $((limit + 2)) "$reader" >/dev/null &
  eval "watch=\$$bang"
  wait "$reader"
  result=$?
  kill "$watch"
  return "$result"
}

echo "@gpuwright 1"
run 5 date +%s
run 5 id -u
run 5 uname -m
run 5 python3 --version
run 5 ldd --version
for path in etc/os-release usr/lib/os-release etc/machine-id proc/sys/kernel/osrelease proc/sys/kernel/random/boot_id proc/1/comm proc/1/stat proc/cpuinfo proc/meminfo proc/net/tcp proc/net/tcp6 proc/driver/nvidia/version proc/self/mountinfo sys/fs/cgroup/memory.max sys/devices/system/cpu/online sys/hypervisor/type sys/class/dmi/id/product_name sys/class/dmi/id/sys_vendor sys/class/dmi/id/bios_vendor run/systemd/container run/host/container-manager; do
  text "$path"
done
echo "@file /proc/1/environ"
tr "\000" "\n" < proc/1/environ | grep "^container=" | awk "$keep"
for device in sys/bus/pci/devices/*; do
  read -r class < "$device/class"
  case "$class" in 0x03*|0x0680*) shown=yes;; *) shown=no;; esac
  if [ "$shown" = yes ]; then
    for name in class vendor device boot_vga; do
      text "$device/$name"
    done
    echo "@link /$device/driver"
    readlink "$device/driver" | awk "$keep"
  fi
done
echo "@paths"
for path in dev/null dev/nvidia* dev/nvidia-caps/* dev/dxg proc/driver/nvidia sys/module/nvidia sys/module/nouveau run/systemd/system .dockerenv run/.containerenv usr/lib/systemd/libsystemd-shared-* lib/systemd/libsystemd-shared-* usr/lib64/systemd/libsystemd-shared-* usr/lib/*/systemd/libsystemd-shared-* usr/lib/libnvidia-ml.so* usr/lib64/libnvidia-ml.so* usr/lib/*/libnvidia-ml.so* usr/lib/wsl/lib/libnvidia-ml.so*; do
  if [ -e "$path" ]; then
    echo "/$path" | awk "$keep"
  fi
done
run 5 df -kPT
for path in "$@"; do
  place=".$path"
  until [ -e "$place" ] || [ -z "$place" ]; do
    place="${place%/*}"
  done
  echo "@disk $path" | awk '{ gsub(/[^ -~]/, "?"); print }'
  run 5 df -kPT "${place:-.}"
done
if command -v nvidia-smi >/dev/null; then
  run 15 nvidia-smi -q -x
  result=$?
  if [ "$result" -lt 2 ]; then
    run 10 nvidia-smi --query-gpu=index,uuid,pci.bus_id,pci.device_id,name,memory.total,memory.free,compute_cap --format=csv,noheader,nounits
  fi
  if [ "$result" -eq 0 ]; then
    run 10 nvidia-smi topo -m && run 10 nvidia-smi topo -p2p r && run 10 nvidia-smi nvlink -s
  fi
fi
run 5 sh -c "dmesg >/dev/null || exit 1; dmesg | grep NVRM | tail -n 400"
echo "@end"
