#!/usr/bin/env bash
# Writes the differences as a comment of the pull request, in place of the previous one.
set -euo pipefail

body="$RUNNER_TEMP/weir-diff.md"
gh pr comment "$PULL_REQUEST" --edit-last --body-file "$body" || gh pr comment "$PULL_REQUEST" --body-file "$body"
