#!/usr/bin/env bash
# Runs all rungs and prints their tables. With --write they go into README.md, each if its claims held.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
broken=0
table=$(mktemp)
trap 'rm -f "$table"' EXIT
for rung in "$here"/rung*.sh; do
  name=$(basename "$rung")
  echo "## $name"
  if ! bash "$rung" | tee "$table"; then
    broken=1
    continue
  fi
  if [ "${1:-}" = --write ]; then
    awk -v begin="<!-- $name -->" -v table="$table" '
      $0 == begin { print; print ""; while ((getline line < table) > 0) print line; print ""; skip = 1 }
      $0 == "<!-- end -->" { skip = 0 }
      !skip && $0 != begin { print }
    ' "$here/README.md" >"$here/README.md.new"
    mv "$here/README.md.new" "$here/README.md"
  fi
done
exit $broken
