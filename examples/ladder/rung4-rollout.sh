#!/usr/bin/env bash
# Rung 4: a rolling restart behind a balancer, and what waiting costs: errors and minutes.
#
# Each instance in turn fails its readiness, serves on for a while, leaves, and is started again, which takes a second;
# the next one follows when HAProxy has this one back. They differ in the while: none, a fixed pause, or until HAProxy says
# that it has dropped the instance and that no request is left there. Done when none and the pause that is too
# short lose requests, the longer pauses and the hold lose none, and the hold is faster than the pauses that lose none.
source "$(dirname "$0")/lib.sh"

interval=200 fall=3 boot=1s # HAProxy drops an instance after 400 to 600 ms
too_short=0.2 long=1 generous=4 # s
if [ -n "$short" ]; then
  interval=100 boot=500ms too_short=0.05 long=0.6
fi

# rollout WAY ADMIN NAME=PORT…: one instance after the other. The client times it.
rollout() {
  local way=$1 admin=$2 instance name port
  shift 2
  for instance; do
    name=${instance%=*} port=${instance#*=}
    curl -fs -X POST "http://127.0.0.1:$port/unready"
    case $way in
      none) ;;
      hold) eventually 30 dropped "$admin" "$name" ;;
      *) sleep "$way" ;;
    esac
    end "$name" TERM
    start "$name" "$port" -boot $boot
    eventually 30 answers "$port" /ready
    eventually 30 target_is "$admin" "$name" UP
  done
}

# dropped ADMIN NAME: no new request goes there, and none is left.
dropped() {
  case $(target "$1" "$2" 2>/dev/null) in DOWN*,0) return 0 ;; esac
  return 1
}

# reload_all NAME…: the same under handoverd, for each instance one.
reload_all() {
  local name
  for name; do "$LADDER_BIN/handoverd" reload --runtime-dir "$LADDER_WORK/$name"; done
}

begin "$@"
instances=(a b c d)
ways=(none $too_short $long $generous hold)
if [ -n "$short" ]; then
  instances=(a b)
  ways=(none $too_short $long hold)
fi

# measure OUT STEP…: a rollout under load; the drill lasts as long as it does.
measure() {
  local out=$1
  shift
  drill "$out" "$front" --mode 'fresh,keepalive' --rate 400 --every 500ms --for 600ms --window 500ms --exec "$(step "$@")"
}

front=$(free_port) admin=$(free_port)
backends=()
for name in "${instances[@]}"; do
  port=$(free_port)
  start "$name" "$port"
  eventually 30 answers "$port" /ready
  backends+=("$name=$port")
done
balance proxy "$front" "$admin" /ready $interval $fall "${backends[@]}"
for way in "${ways[@]}"; do measure "$way" rollout "$way" "$admin" "${backends[@]}"; done
end proxy TERM
for name in "${instances[@]}"; do end "$name" TERM; done

front=$(free_port) admin=$(free_port)
backends=()
for name in "${instances[@]}"; do
  port=$(free_port)
  supervise "held.$name" "$port"
  backends+=("$name=$port")
done
balance proxy "$front" "$admin" '/fast?n=1' $interval $fall "${backends[@]}"
measure held reload_all "${instances[@]/#/held.}"

row() {
  report "$1" ".triggers[0].reload_seconds as \$s |
    \"| $2 | \(.sent) | **\(.failed)** | \(\$s * 10 | round / 10) | \(\$s / 60 * 1000 | round / 1000) | \(\$s / ${#instances[@]} * 100 | round / 100) |\""
}
echo "| before it leaves | requests | failed | seconds per rollout | minutes per rollout | seconds per instance |"
echo "|---|---|---|---|---|---|"
for way in "${ways[@]}"; do
  case $way in
    none) row none 'none' ;;
    hold) row hold 'hold until HAProxy has dropped it' ;;
    *) row "$way" "fixed pause of $way s" ;;
  esac
done
row held 'under handoverd: `reload`, nothing to wait for'
echo
failed() { report "$1" .failed; }
millis() { report "$1" '.triggers[0].reload_seconds * 1000 | round'; }
claim "without a wait requests are lost" "$(failed none)" -gt 0
claim "with a pause shorter than the balancer needs as well" "$(failed $too_short)" -gt 0
for way in "${ways[@]}"; do
  case $way in none | "$too_short" | hold) continue ;; esac
  claim "a pause of $way s loses none" "$(failed "$way")" -eq 0
  claim "and takes longer than the hold" "$(millis "$way")" -gt "$(millis hold)"
done
claim "the hold loses none" "$(failed hold)" -eq 0
claim "under handoverd a rollout loses none" "$(failed held)" -eq 0
claim "and is faster than the hold" "$(millis held)" -lt "$(millis hold)"
verdict
