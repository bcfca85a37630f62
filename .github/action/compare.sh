#!/usr/bin/env bash
# Compares the policies in $POLICIES with $BASE, and writes annotations, a summary, reports and the outputs of the step.
set -euo pipefail

base="${BASE:-}"
if [ -z "$base" ]; then
  if [ -z "${GITHUB_BASE_REF:-}" ]; then
    echo "::error::there is no pull request to compare with: set the input 'base'"
    exit 1
  fi
  if ! ancestor="$(git merge-base "origin/$GITHUB_BASE_REF" HEAD)"; then
    echo "::error::the history of $GITHUB_BASE_REF is missing: check out with 'fetch-depth: 0'"
    exit 1
  fi
  base="git:$ancestor:$POLICIES"
fi
gate=()
if [ -n "$DENY" ]; then
  gate=(--deny "$DENY")
  if [ -e "$APPROVED" ]; then gate+=(--approved "$APPROVED"); fi
fi
# 0 is no change, and 1 a change or one that the gate refuses. Anything else fails the step.
compare() {
  local code=0
  weir diff "$base" "$POLICIES" "$@" || code=$?
  test "$code" -le 1 || exit "$code"
  result="$code"
}
compare --no-cost > /dev/null
changed="$result"
compare "${gate[@]}" -o md > "$RUNNER_TEMP/weir-diff.md"
refused=0
if [ -n "$DENY" ]; then refused="$result"; fi
compare "${gate[@]}" -o github
compare "${gate[@]}" -o html > "$RUNNER_TEMP/weir-diff.html"
cat "$RUNNER_TEMP/weir-diff.md" >> "$GITHUB_STEP_SUMMARY"
words=(false true)
echo "changed=${words[$changed]}" >> "$GITHUB_OUTPUT"
echo "refused=${words[$refused]}" >> "$GITHUB_OUTPUT"
