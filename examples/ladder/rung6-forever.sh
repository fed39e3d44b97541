#!/usr/bin/env bash
# Rung 6: for ever. One termination in five is a SIGKILL (at Borg about 20 % get no notice at all), and not only of the program.
#
# The plain server ends by SIGTERM, which it handles, or by SIGKILL, and is started again. Under handoverd what would be a
# SIGTERM is a reload, and handoverd itself is killed as well, and started again after up to two seconds. A third of the
# requests opens a connection each, the others reuse 64 connections, for GETs and for POSTs. Done when the
# plain server loses requests to every kind of termination; and under handoverd reloads and kills of handoverd lose
# none, kills of the program only what it had accepted, and no connection is ever refused.
source "$(dirname "$0")/lib.sh"

# In the short form two in three of what happens under handoverd are kills, so that each kind is seen.
period=5 count=50 every=3 kill=0.2 slay=0.1 within=2s seed=23
if [ -n "$short" ]; then period=2 count=4 every=2 kill=0.3 slay=0.3 within=300ms seed=22; fi

# terminate NAME PORT: one in $period is a SIGKILL; then a restart 100 ms later, as by systemd with Restart=always.
terminate() {
  local name=$1 port=$2 n kind=TERM
  n=$(wc -l <"$LADDER_WORK/$name.kinds")
  if [ $((n % period)) -eq 1 ]; then kind=KILL; fi
  echo "\"$kind\"" >>"$LADDER_WORK/$name.kinds"
  end "$name" "$kind"
  sleep 0.1
  start "$name" "$port"
  eventually 30 answers "$port"
}

# again NAME PORT: handoverd, after it was killed.
again() { run_handoverd "$1" "$2"; }

begin "$@"
# A window is as long as it takes until each of the connections has been used again: a dead one is found only then.
load=(--mode 'fresh,keepalive,post' --rate 300 --every ${every}s --window 1500ms --for "$(jq -n "$count * $every + 1")s")

plain=$(free_port)
: >"$LADDER_WORK/plain.kinds"
start plain "$plain"
eventually 30 answers "$plain"
held=$(free_port)
supervise held "$held"
# Both at the same time, on the same machine.
drill plain "$plain" "${load[@]}" --exec "$(step terminate plain "$plain")" &
other=$!
drill held "$held" "${load[@]}" --runtime-dir "$LADDER_WORK/held" --reload web --kill $kill --kill-supervisor $slay --seed $seed \
  --restart "$(step again held "$held")" --restart-within $within
wait $other

# The client does not know what the command did: the plain server's triggers are named by the script's own account.
jq --slurpfile kinds "$LADDER_WORK/plain.kinds" '.triggers |= [to_entries[] | .key as $n | .value + {kind: $kinds[$n]}]' \
  "$LADDER_WORK/plain.json" >"$LADDER_WORK/named.json"

# of OUT KIND FILTER: something of the triggers of one kind.
of() { report "$1" "[.triggers[] | select(.kind == \"$2\")] | $3"; }

row() {
  of "$1" "$2" "length as \$times | (map(.failed) | add // 0) as \$failed | (map(.failures) | sum) as \$f |
    \"| $3 | \(\$times) | \(map(.requests) | add // 0) | **\(\$failed)** | \(if \$times > 0 then \$failed / \$times * 10 | round / 10 else \"\" end) | \(\$f | kinds) |\""
}
echo "| how it ends | times | requests then | failed | each | refused | reset | eof | truncated | other |"
echo "|---|---|---|---|---|---|---|---|---|---|"
row named TERM 'plain: SIGTERM, with a handler; restarted after 100 ms'
row named KILL 'plain: SIGKILL; restarted after 100 ms'
row held reload 'under handoverd: `reload`'
row held kill 'under handoverd: SIGKILL of the program'
row held kill-supervisor 'under handoverd: SIGKILL of handoverd; restarted after 0 to 2 s'
echo
failed() { of "$1" "$2" 'map(.failed) | add // 0'; }
happened() { [ "$(of "$1" "$2" length)" -gt 0 ] && echo "$2"; }
claim "the plain server loses requests to its restarts" "$(failed named TERM)" -gt 0
claim "and to its kills" "$(failed named KILL)" -gt 0
claim "connections to it were refused" "$(report plain '[.modes[].failures] | sum | refused')" -gt 0
claim "under handoverd all three kinds happened" "$(happened held reload) $(happened held kill) $(happened held kill-supervisor)" = 'reload kill kill-supervisor'
claim "no reload lost any" "$(failed held reload)" -eq 0
claim "no kill of handoverd lost any" "$(failed held kill-supervisor)" -eq 0
claim "and what served before served on" "$(report held '.supervisor_kills - .adopted')" -eq 0
claim "kills of the program cost only what it had accepted: no connection was refused, or reset in connect" \
  "$(report held '[.modes[].failures] | sum | refused + n("reset-connect")')" -eq 0
claim "and outside of all that none was lost" "$(report held .lost.outside)" -eq 0
verdict
