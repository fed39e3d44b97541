#!/usr/bin/env bash
# Rung 1: what a SIGKILL under load costs, and what is left of it when somebody else holds the socket.
#
# A third of the requests opens a connection each, a third reuses 64 connections, a third are streams of one to two
# seconds. Done when each kill of the plain server has failed requests, and no connection is refused under handoverd.
source "$(dirname "$0")/lib.sh"

# restart NAME PORT: a kill, and a restart 100 ms later, as by systemd with Restart=always (RestartSec, systemd.service(5)).
restart() {
  end "$1" KILL
  sleep 0.1
  start "$1" "$2"
  eventually 30 answers "$2"
}

begin "$@"
kills=10 every=2 seconds=21
if [ -n "$short" ]; then kills=2 every=3 seconds=7; fi
# The window is as long as it takes until each of the 64 connections has been used again: a dead one is found only then.
# And more than 1 s apart, a kill is no crash loop, in which handoverd would wait before it starts the next generation.
load=(--mode 'fresh,keepalive,stream' --rate 300 --every ${every}s --window 900ms --for ${seconds}s)

plain=$(free_port)
start plain "$plain"
eventually 30 answers "$plain"
drill plain "$plain" "${load[@]}" --exec "$(step restart plain "$plain")"
end plain KILL

held=$(free_port)
supervise held "$held"
drill held "$held" "${load[@]}" --runtime-dir "$LADDER_WORK/held" --reload web --kill 1

# rows OUT NAME: a row for each kill, and their sum.
rows() {
  report "$1" "(.triggers | to_entries[] | .value as \$t |
      \"| $2 | \(.key + 1) | \(\$t.requests) | **\(\$t.failed)** | \(\$t.failures | kinds) |\"),
    \"| $2 | all | \(.sent) | **\(.failed)** | \([.modes[].failures] | sum | kinds) |\""
}
echo "| server | kill | requests | failed | refused | reset | eof | truncated | other |"
echo "|---|---|---|---|---|---|---|---|---|"
rows plain 'plain, restarted after 100 ms'
rows held 'under handoverd'
echo
claim "each of the $kills kills of the plain server cost requests" \
  "$(report plain '[.triggers[] | select(.kind == "reload" and .failed > 0)] | length')" -eq "$kills"
claim "connections were refused between the kill and the restart" \
  "$(report plain '[.modes[].failures] | sum | refused')" -gt 0
claim "under handoverd $kills kills cost requests as well" \
  "$(report held '[.triggers[] | select(.kind == "kill" and .failed > 0)] | length')" -eq "$kills"
claim "but only what the killed process had accepted: no connection was refused, or reset in connect" \
  "$(report held '[.modes[].failures] | sum | refused + n("reset-connect")')" -eq 0
verdict
