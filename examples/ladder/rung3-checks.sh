#!/usr/bin/env bash
# Rung 3: how long clients see errors behind a balancer with active checks.
#
# Two instances behind HAProxy. At SIGTERM one fails its readiness and leaves at once, as a server with a handler does.
# HAProxy goes on sending it every second request until its checks have failed `fall` times, one each `inter`; these
# requests fail at once (retries 0). The error window is from the first failure that the client sees to the last. Done
# when, in each of six pairs of interval and threshold, it lies within one interval of their product.
source "$(dirname "$0")/lib.sh"

# When it leaves, as a share of the interval after a check. By arithmetic the window is the product less that share of an
# interval; just after a check or just before the next, the claim would be about the machine's scheduler.
shares=(0.2 0.4 0.6)

# leave NAME SECONDS: waits for a check, and then so long, and leaves.
leave() {
  local log=$LADDER_WORK/$1.log seen
  seen=$(wc -l <"$log")
  while [ "$(wc -l <"$log")" -eq "$seen" ]; do sleep 0.002; done
  sleep "$2"
  end "$1" TERM
}

begin "$@"
pairs=(200x2 200x3 300x2 300x4 400x3 500x3)
if [ -n "$short" ]; then
  pairs=(200x2 300x3)
  shares=(0.4)
fi
front=$(free_port) admin=$(free_port) a=$(free_port) b=$(free_port)
start a "$a"
start b "$b"
eventually 30 answers "$a" /ready
eventually 30 answers "$b" /ready

# measure OUT PRODUCT INTERVAL SHARE: one instance leaves under load, and is started again.
measure() {
  drill "$1" "$front" --mode fresh --rate 400 --every 300ms --for 400ms --window "$(($2 + 2 * $3 + 300))ms" \
    --exec "$(step leave a "$(awk "BEGIN { print $3 * $4 / 1000 }")")"
  start a "$a"
  eventually 30 target_is "$admin" a UP
}

echo "| interval | threshold | product | error windows | farthest from the product | failed | requests |"
echo "|---|---|---|---|---|---|---|"
outs=()
for pair in "${pairs[@]}"; do
  interval=${pair%x*} fall=${pair#*x}
  product=$((interval * fall))
  balance "proxy.$pair" "$front" "$admin" /ready "$interval" "$fall" "a=$a" "b=$b"
  files=()
  for share in "${shares[@]}"; do
    measure "$pair.$share" $product "$interval" "$share"
    files+=("$LADDER_WORK/$pair.$share.json")
  done
  end "proxy.$pair" TERM
  jq -s --argjson interval "$interval" --argjson fall "$fall" --argjson product "$product" '
    map(.triggers[0] | (.last_failed_seconds - .first_failed_seconds) * 1000 | round) as $windows |
    {$interval, $fall, $product, $windows, far: ($windows | map(. - $product | fabs) | max),
     failed: (map(.failed) | add), sent: (map(.sent) | add),
     strange: (map(.modes[].failures | del(.["bad-status"]) | add // 0) | add)}' "${files[@]}" >"$LADDER_WORK/$pair.json"
  outs+=("$pair")
  report "$pair" '"| \(.interval) ms | \(.fall) | \(.product) ms | \(.windows | map("\(.)") | join(", ")) ms | \(.far) ms | \(.failed) | \(.sent) |"'
done

# And under handoverd, behind the slowest checks: the port stays open, so there is nothing that they could miss.
held=$(free_port)
supervise held "$held"
balance proxy.held "$front" "$admin" '/fast?n=1' "$interval" "$fall" "a=$held" "b=$b"
drill held "$front" --mode fresh --rate 400 --every 500ms --for 2200ms --runtime-dir "$LADDER_WORK/held" --reload web
report held "\"| $interval ms | $fall | $product ms | under handoverd, \(.reloads) reloads: none | | \(.failed) | \(.sent) |\""

echo
outside='' strange=''
for pair in "${outs[@]}"; do
  [ "$(report "$pair" .far)" -le "${pair%x*}" ] || outside+=" $pair"
  [ "$(report "$pair" 'if .failed > 0 then .strange else "none failed" end')" = 0 ] || strange+=" $pair"
done
claim "in each of ${#outs[@]} pairs every window is within one interval of the product" -z "$outside"
claim "requests failed in each, and HAProxy's 503 is all that the client saw" -z "$strange"
claim "under handoverd reloads lose none" "$(report held 'if .reloads > 0 then .failed else "no reload" end')" = 0
verdict
