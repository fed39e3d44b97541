#!/usr/bin/env bash
# Rung 5: connections that stay for ever. A server with a thousand WebSockets is replaced, and they have to move.
#
# Who serves the next connection is settled by the handover; the old ones live in the old process and end with it. A
# WebSocket is lost when it ends in another way than by close 1012 (service restart), which tells its client to come back.
# The clients come back at once, and all times are theirs. Done when an exit that cuts them loses all and they return in
# one moment, also under handoverd; and with a goodbye to each over a window (package drain) none is lost, the drain ends
# inside its budget, and no bucket of reconnects is above three times the mean.
source "$(dirname "$0")/lib.sh"

# In the short form the buckets are wider, so that each expects enough clients and a busy machine makes no peak.
clients=1000 replacements=5 window=10 bucket=100 budget=30 # s, s, ms, s; a window is at most half of what a drain has
if [ -n "$short" ]; then
  clients=240 replacements=2 window=2 bucket=250 budget=12
fi

# start_streams NAME PORT OPTION…: the WebSocket server by itself. Returns at once.
start_streams() {
  local name=$1 port=$2
  shift 2
  "$LADDER_BIN/streamserver" -addr "127.0.0.1:$port" "$@" >>"$LADDER_WORK/$name.log" 2>&1 </dev/null &
  started >"$LADDER_WORK/$name.pid"
}

# listens PORT: somebody accepts there.
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# restart NAME PORT OPTION…: stop, wait, start, as an init does it.
restart() {
  local name=$1 port=$2
  end "$name" TERM
  sleep 0.1
  start_streams "$@"
  eventually 30 listens "$port"
}

# replace NAME: a new generation, and the old one has gone.
replace() {
  "$LADDER_BIN/handoverd" reload --runtime-dir "$LADDER_WORK/$1" >&2
  eventually $((budget + 30)) single "$1"
}

# single NAME: there is no old generation.
single() { [ "$(state "$1" '.services[0].generations | length')" = 1 ]; }

# state NAME FILTER: something of a handoverd's status.
state() { "$LADDER_BIN/handoverd" status --json --runtime-dir "$LADDER_WORK/$1" 2>/dev/null | jq -r "$2"; }

# watched NAME: somebody follows its events.
watched() { [ "$(state "$1" '.followers // 0')" -gt 0 ]; }

begin "$@"

# measure OUT PORT STEP…: all clients are connected; the step is done again and again.
measure() {
  local out=$1 port=$2
  shift 2
  if ! "$LADDER_BIN/streamclient" -addr "127.0.0.1:$port" -clients $clients -rounds $replacements -window ${window}s \
    -bucket ${bucket}ms -exec "$(step "$@")" >"$LADDER_WORK/$out.rounds" 2>"$LADDER_WORK/client.$out.log"; then
    echo "ladder: the client of $out failed" >&2
    tail -n 20 "$LADDER_WORK"/*.log >&2
    return 1
  fi
}

# held OUT OPTION…: the server under a handoverd of its own, whose events say how long each old generation had to be waited
# for, and how it ended.
held() {
  local out=$1 port
  shift
  port=$(free_port)
  "$LADDER_BIN/handoverd" run --runtime-dir "$LADDER_WORK/$out" --parent-shutdown ${budget}s -l "http=127.0.0.1:$port" -- \
    "$LADDER_BIN/streamserver" "$@" >>"$LADDER_WORK/$out.log" 2>&1 </dev/null &
  started >"$LADDER_WORK/$out.pid"
  eventually 30 serving "$out"
  "$LADDER_BIN/handoverd" events --json --runtime-dir "$LADDER_WORK/$out" >"$LADDER_WORK/$out.events" 2>/dev/null </dev/null &
  started >"$LADDER_WORK/events.$out.pid"
  eventually 30 watched "$out"
  measure "$out" "$port" replace "$out"
  # Each transition of an old generation was written before it was no longer in the status, but not yet read, perhaps.
  eventually 30 read_all "$out"
  collect "$out"
  end "$out" TERM
}
read_all() { [ "$(grep -c '"to":"gone"' "$LADDER_WORK/$1.events")" = $replacements ]; }

# collect OUT: one report of the rounds and, where there are some, of the events.
collect() {
  [ -e "$LADDER_WORK/$1.events" ] || : >"$LADDER_WORK/$1.events"
  jq -n --slurpfile rounds "$LADDER_WORK/$1.rounds" --slurpfile events "$LADDER_WORK/$1.events" '
    def seconds: (.[:19] + "Z" | fromdate) + ("0" + (.[19:-1]) | tonumber);
    def far: . * 100 | round / 100;
    ($events | map(select(.kind == "transition"))) as $moves |
    [$moves[] | select(.to == "draining")] as $begun | [$moves[] | select(.to == "gone")] as $gone |
    $rounds[0] as $r | {
      rounds: ($r | length), held: ($r | map(.clients) | add), ended: ($r | map(.ended) | add), lost: ($r | map(.lost) | add),
      failed: ($r | map(.failed_attempts) | add), stale: ($r | map(.stale) | add),
      spread: ($r | map(.spread) | [min, max] | map(far)), gap: ($r | map(.gap) | max * 1000 | round),
      peak: ($r | map(.peak) | max), mean: $r[0].mean, ratio: ($r | map(.peak / .mean) | max | far),
      drains: [$gone[] | . as $g | $begun[] | select(.generation == $g.generation) | ($g.time | seconds) - (.time | seconds) | far],
      forced: [$gone[] | select(.why != "exit status 0")] | length}' >"$LADDER_WORK/$1.json"
}

port=$(free_port)
start_streams plain "$port" -goodbye=false
eventually 30 listens "$port"
measure plain "$port" restart plain "$port" -goodbye=false
collect plain
end plain TERM
held cut -goodbye=false
held once -window 0
held spread -window ${window}s

row() {
  report "$1" "\"| $2 | \(.rounds) | \(.held) | **\(.lost)** | \(.failed) | \(.spread | map(\"\(.)\") | join(\" to \")) s | \(.peak) | **\(.ratio)** | \(.gap) ms | \(.drains | max // \"\") |\""
}
echo "| $clients WebSockets, at the exit | replaced | held | lost | failed connects | first to last connect | most in $bucket ms | × mean | longest gap | longest drain, s |"
echo "|---|---|---|---|---|---|---|---|---|---|"
row plain 'cut; restarted after 100 ms'
row cut 'cut; under handoverd: `reload`'
row once 'close 1012, all at once; under handoverd'
row spread "close 1012 over $window s; under handoverd"
echo
echo "(The mean is $clients clients over $window s, in $bucket ms; the budget is a \`parent_shutdown\` of $budget s.)"
echo
all=$((clients * replacements))
spike() { report "$1" '.peak > 3 * .mean'; }
claim "a restart loses every WebSocket" "$(report plain '"\(.ended) \(.lost)"')" = "$all $all"
claim "and their clients find the port closed" "$(report plain .failed)" -gt 0
claim "under handoverd the exit cuts as many" "$(report cut '"\(.ended) \(.lost)"')" = "$all $all"
claim "but not one connect fails, here or below" "$(jq -s 'map(.failed) | add' "$LADDER_WORK"/{cut,once,spread}.json)" -eq 0
claim "all return at once: a spike above 3 times the mean" "$(spike plain) $(spike cut)" = "true true"
claim "a goodbye to all at once loses none, and is a spike as well" "$(report once '"\(.ended) \(.lost)"') $(spike once)" = "$all 0 true"
claim "goodbyes over a window lose none" "$(report spread '"\(.ended) \(.lost)"')" = "$all 0"
claim "and no $bucket ms of reconnects are above 3 times the mean" "$(spike spread)" = false
claim "each of these drains ended by itself and inside its budget" \
  "$(report spread "\"\(.drains | length) \(.drains | all(. < $budget)) \(.forced)\"")" = "$replacements true 0"
claim "no client came back to the process that it was to leave" "$(jq -s 'map(.stale) | add' "$LADDER_WORK"/{cut,once,spread}.json)" -eq 0
verdict
