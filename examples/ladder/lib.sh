# Sourced by the rungs: starts and ends programs, drills, and checks what a rung claims.
#
# A rung is one script. handoverd drill triggers its steps by running the same script again with the step's name and
# arguments (see `drill`), so that a step is an ordinary function, and the time it takes is measured by the client.
#
#   LADDER_SHORT=1   fewer repetitions
#   LADDER_BIN=DIR   where handoverd and the programs of this folder are, and goserver; without it they are built

set -euo pipefail
rung=$(readlink -f "$0")
cd "$(dirname "$rung")/../.."
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
short=${LADDER_SHORT:-}

# --- the folder of a run, and the end of everything in it ---

# alive PID: it has not ended. A zombie has, whose parent does not wait for it, but only when no other thread of it is left:
# these hold its sockets until they have gone as well.
alive() {
  local stat threads
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  stat=${stat##*) }
  threads=(/proc/"$1"/task/*)
  [ "${stat:0:1}" != Z ] || [ ${#threads[@]} -gt 1 ]
}

# gone PID: waits until it has ended.
gone() { while alive "$1"; do sleep 0.005; done; }

# ours PID: it is one of the programs that a rung starts, and not another that has its number by now.
ours() {
  alive "$1" || return 1
  case $(readlink "/proc/$1/exe") in
    "$LADDER_BIN"/*) return 0 ;;
    "$(readlink -f "$(command -v haproxy)")") return 0 ;;
  esac
  return 1
}

# finish_all ends what was started: SIGTERM, and SIGKILL after five seconds.
finish_all() {
  local file pid left=1000
  set +e
  for file in "$LADDER_WORK"/*.pid; do
    pid=$(cat "$file" 2>/dev/null) && ours "$pid" && kill -TERM "$pid"
  done
  for file in "$LADDER_WORK"/*.pid; do
    pid=$(cat "$file" 2>/dev/null) || continue
    while ours "$pid" && [ $((left -= 1)) -gt 0 ]; do sleep 0.005; done
    ours "$pid" && kill -KILL "$pid"
  done
  rm -rf "$LADDER_WORK"
}

# begin "$@": the first line of a rung after its functions. Runs a step, where one is asked for, and else prepares a run.
begin() {
  if [ $# -gt 0 ]; then
    "$@"
    exit
  fi
  if [ -z "${LADDER_BIN:-}" ]; then
    make -s build >&2
    mkdir -p build/ladder
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o build/ladder/ ./examples/goserver \
      ./examples/ladder/{server,streamserver,streamclient} >&2
    cp -f bin/handoverd build/ladder/
    LADDER_BIN=$PWD/build/ladder
  fi
  LADDER_BIN=$(readlink -f "$LADDER_BIN")
  LADDER_WORK=$(mktemp -d /tmp/ladder.XXXXXX)
  export LADDER_BIN LADDER_WORK
  trap finish_all EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# --- programs ---

# free_port: one that nobody listens on, and that the kernel gives to no client as a source: a server that is started
# anew would find it taken. Each is given out once in a run.
free_port() {
  local port low high
  read -r low high </proc/sys/net/ipv4/ip_local_port_range
  while :; do
    port=$((10000 + (RANDOM * 32768 + RANDOM) % 22000))
    if [ "$port" -ge "$low" ] && [ "$port" -le "$high" ]; then continue; fi
    if [ -e "$LADDER_WORK/port.$port" ]; then continue; fi
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
    : >"$LADDER_WORK/port.$port"
    echo "$port"
    return
  done
}

# eventually SECONDS COMMAND…: waits until it succeeds.
eventually() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    if [ $SECONDS -gt $deadline ]; then
      echo "ladder: still not so: $*" >&2
      tail -n 20 "$LADDER_WORK"/*.log >&2
      return 1
    fi
    sleep 0.01
  done
}

# answers PORT [PATH]: an HTTP server there says 200.
answers() { curl -fs -o /dev/null --max-time 2 "http://127.0.0.1:$1${2:-/fast?n=1}"; }

# started writes the number of the program begun last. The shell shall not tell of its end: being killed is what it is for.
started() {
  echo $!
  disown
}

# start NAME PORT OPTION…: the plain server. Returns at once.
start() {
  local name=$1 port=$2
  shift 2
  "$LADDER_BIN/server" -addr "127.0.0.1:$port" "$@" >>"$LADDER_WORK/$name.log" 2>&1 </dev/null &
  started >"$LADDER_WORK/$name.pid"
}

pid_of() { cat "$LADDER_WORK/$1.pid"; }

# end NAME SIGNAL: signals it and waits for its end.
end() {
  local pid
  pid=$(pid_of "$1")
  kill "-$2" "$pid"
  gone "$pid"
}

# run_handoverd NAME PORT: examples/goserver under a handoverd of its own. Returns at once.
run_handoverd() {
  "$LADDER_BIN/handoverd" run --runtime-dir "$LADDER_WORK/$1" -l "http=127.0.0.1:$2" -- "$LADDER_BIN/goserver" \
    >>"$LADDER_WORK/$1.log" 2>&1 </dev/null &
  started >"$LADDER_WORK/$1.pid"
}

# supervise NAME PORT: run_handoverd, and its first generation serves.
supervise() {
  run_handoverd "$@"
  eventually 30 serving "$1"
}

# serving NAME: the first generation is past its commit. It answers a moment before.
serving() {
  "$LADDER_BIN/handoverd" status --json --runtime-dir "$LADDER_WORK/$1" 2>/dev/null | jq -e .ready >/dev/null
}

# --- HAProxy: active checks, and nothing that hides an error ---

# balance NAME FRONT ADMIN CHECK INTERVAL_MS FALL INSTANCE=PORT…
balance() {
  local name=$1 front=$2 admin=$3 path=$4 interval=$5 fall=$6 instance
  shift 6
  {
    cat <<CFG
global
    maxconn 4000
    stats socket ipv4@127.0.0.1:$admin level admin
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
    retries 0
    no option redispatch
frontend web
    bind 127.0.0.1:$front
    default_backend app
backend app
    balance roundrobin
    option httpchk GET $path
    default-server check inter ${interval}ms fall $fall rise 2
CFG
    for instance; do echo "    server ${instance%=*} 127.0.0.1:${instance#*=}"; done
  } >"$LADDER_WORK/$name.cfg"
  haproxy -db -f "$LADDER_WORK/$name.cfg" >>"$LADDER_WORK/$name.log" 2>&1 </dev/null &
  started >"$LADDER_WORK/$name.pid"
  for instance; do eventually 30 target_is "$admin" "${instance%=*}" UP; done
}

# target ADMIN INSTANCE: its state as HAProxy has it (UP, DOWN, "UP 1/3" …) and how many requests it has, "UP,0".
# Columns of `show stat`: HAProxy management guide, 9.1.
target() {
  exec 9<>"/dev/tcp/127.0.0.1/$1" || return
  echo "show stat app 4 -1" >&9
  awk -F, -v name="$2" '$2 == name { print $18 "," $5 }' <&9
  exec 9>&-
}

# target_is ADMIN INSTANCE STATE: with "DOWN,0" it has no request left either.
target_is() {
  case $(target "$1" "$2" 2>/dev/null) in "$3" | "$3",*) return 0 ;; esac
  return 1
}

# --- the client ---

# drill OUT PORT ARGUMENT…: runs the load and leaves the report in OUT. Lost requests are what is to be seen, so they do
# not fail it; a trigger that fails does.
drill() {
  local out=$1 port=$2
  shift 2
  if ! "$LADDER_BIN/handoverd" drill --url "http://127.0.0.1:$port" --contract on --max-failures 1000000 --json "$@" \
    >"$LADDER_WORK/$out.json" 2>"$LADDER_WORK/drill.$out.log"; then
    echo "ladder: the drill $out failed" >&2
    jq -r '.reasons // [] | .[]' "$LADDER_WORK/$out.json" >&2 || true
    tail -n 20 "$LADDER_WORK"/*.log >&2
    return 1
  fi
}

# step FUNCTION ARGUMENT…: the command that runs it, for `drill --exec`.
step() { printf "bash '%s' %s" "$rung" "$*"; }

# Cells of a table: failures by kind, those of the connection first.
jq_kinds='def n($k): .[$k] // 0;
def refused: n("refused");
def reset: n("reset-connect") + n("reset");
def eof: n("eof");
def truncated: n("truncated");
def other: (add // 0) - refused - reset - eof - truncated;
def kinds: "\(refused) | \(reset) | \(eof) | \(truncated) | \(other)";
def sum: reduce (.[] | to_entries[]) as $e ({}; .[$e.key] += $e.value);'

# report OUT FILTER: something of a report.
report() { jq -r "$jq_kinds $2" "$LADDER_WORK/$1.json"; }

# --- what a rung claims ---

# claim TEXT CONDITION…: a condition as test(1) has it. `verdict` says whether all held.
broken=0
claim() {
  local text=$1
  shift
  if [ "$@" ]; then
    echo "- holds: $text"
  else
    echo "- **does not hold**: $text ($*)"
    broken=$((broken + 1))
  fi
}

verdict() { [ $broken -eq 0 ]; }
