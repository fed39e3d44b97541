#!/usr/bin/env bash
# Rung 2: what a SIGTERM handler alone does: net/http's Shutdown, the port closes, the program is started again.
#
# Streams of one to two seconds are in progress at each restart: where a request can be cut, they show it. Done when the
# handler's failures are all of the connection (refused, reset, or ended before the first byte of an answer) and none
# is in mid-request; the row without a handler shows that cut requests would be seen.
source "$(dirname "$0")/lib.sh"

# restart NAME PORT OPTION…: stop, wait, start, as an init does it.
restart() {
  local name=$1 port=$2
  shift 2
  end "$name" TERM
  start "$name" "$port" "$@"
  eventually 30 answers "$port"
}

begin "$@"
restarts=6
load=(--mode 'fresh,keepalive,stream' --rate 240 --every 4s --window 900ms --for "$((restarts * 4 + 1))s")
if [ -n "$short" ]; then
  restarts=1
  load=(--mode 'fresh,keepalive,stream' --rate 120 --every 1200ms --window 300ms --for 1300ms)
fi

# plain OUT OPTION…: the drill of one kind of plain server.
plain() {
  local out=$1 port
  shift
  port=$(free_port)
  start "$out" "$port" "$@"
  eventually 30 answers "$port"
  drill "$out" "$port" "${load[@]}" --exec "$(step restart "$out" "$port" "$@")"
  end "$out" TERM
}
plain none -handler=false
plain shutdown -handler=true

held=$(free_port)
supervise held "$held"
drill held "$held" "${load[@]}" --runtime-dir "$LADDER_WORK/held" --reload web

row() {
  report "$1" "([.modes[].failures] | sum) as \$f |
    \"| $2 | \(.reloads) | \(.sent) | **\(.failed)** | \(.failed / .reloads * 10 | round / 10) | \([.modes[].reused_failures] | sum | add // 0) | \(\$f | kinds) |\""
}
echo "| at SIGTERM | restarts | requests | failed | per restart | on reused connections | refused | reset | eof | truncated | other |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
row none 'no handler'
row shutdown 'handler: `Shutdown`, port closed'
row held 'under handoverd: `reload`'
echo
cut='[.modes[].failures] | sum | truncated + other'
claim "without a handler requests are cut in the middle" "$(report none "$cut")" -gt 0
claim "with the handler requests are lost all the same" "$(report shutdown .failed)" -gt 0
claim "all of them refused, reset or ended before the first byte: none in mid-request" "$(report shutdown "$cut")" -eq 0
claim "under handoverd no reload loses any" "$(report held '"\(.reloads) \(.failed)"')" = "$restarts 0"
verdict
