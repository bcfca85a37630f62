#!/usr/bin/env bash
# Writes the differences as a comment of the pull request, in place of the previous one. The marker tells it from the
# comments of other tools, which have the same author.
set -euo pipefail

body="$RUNNER_TEMP/weir-diff.md"
marker='<!-- weir-diff -->'
comments="repos/$GITHUB_REPOSITORY/issues"
printf '\n%s\n' "$marker" >> "$body"
mine=".[] | select(.user.login == \"github-actions[bot]\" and (.body | contains(\"$marker\"))) | .id"
ids="$(gh api --paginate "$comments/$PULL_REQUEST/comments" --jq "$mine")"
if [ -n "$ids" ]; then
  gh api --method PATCH "$comments/comments/${ids%%$'\n'*}" --field "body=@$body" > /dev/null
else
  gh api --method POST "$comments/$PULL_REQUEST/comments" --field "body=@$body" > /dev/null
fi
