#!/usr/bin/env bash
# Puts weir on the PATH: $PROGRAM, or the release $VERSION from $RELEASES after a check of its checksum.
set -euo pipefail

directory="$RUNNER_TEMP/weir"
mkdir -p "$directory"
if [ -n "${PROGRAM:-}" ]; then
  cp "$PROGRAM" "$directory/weir"
else
  case "$VERSION" in
    v[0-9]*) ;;
    *) echo "::error::'$VERSION' is no release of weir: set the input 'version' to a tag such as v1.2.3"; exit 1 ;;
  esac
  case "$(uname -s)" in
    Linux) ;;
    *) echo "::error::releases are for Linux: use a Linux runner, or the input 'program'"; exit 1 ;;
  esac
  file="weir-${VERSION#v}-$(uname -m)-unknown-linux-gnu.tar.gz"
  cd "$directory"
  for name in "$file" SHA256SUMS; do
    curl --fail --silent --show-error --location --retry 3 --output "$name" "$RELEASES/$VERSION/$name"
  done
  # Without a line for the file, sha256sum fails.
  awk -v file="$file" '$2 == file' SHA256SUMS | sha256sum --check --strict -
  tar -xzf "$file" --strip-components=1
fi
echo "$directory" >> "$GITHUB_PATH"
