#!/usr/bin/env bash
# Installs the simulators whose packages don't go with mmrl's own, each into an environment of its own under .simulators: ManiSkill (its
# SAPIEN brings another OpenCV) and Meta-World (it wants numpy below 2). Tests find them there and skip what is missing. Does nothing
# where all is there. With names as arguments: only those.
set -uo pipefail
cd "$(dirname "$0")/.."

maniskill() {
  install "$1" -c constraints.txt -c sims/maniskill/constraints.txt -e ".[maniskill]" torch pytest pytest-timeout
}

metaworld() {
  install "$1" -c sims/gym/constraints-metaworld.txt metaworld packaging
}

install() {
  local folder=$1; shift
  .venv/bin/python -m venv --clear --without-pip "$folder" \
    && .venv/bin/python -m pip --python "$folder/bin/python" install -q --retries 2 --timeout 60 "$@"
}

# what the stamp says, which is written last
fingerprint() {
  case $1 in
    maniskill) cat tests/simulators.sh constraints.txt sims/maniskill/constraints.txt sims/maniskill/pyproject.toml ;;
    metaworld) cat tests/simulators.sh sims/gym/constraints-metaworld.txt ;;
  esac | cksum
}

[ $# -gt 0 ] || set -- maniskill metaworld
failed=()
for name in "$@"; do
  case $name in maniskill|metaworld) ;; *) echo "there is no simulator $name here: maniskill, metaworld" >&2; exit 2 ;; esac
  folder=.simulators/$name
  if [ "$(cat "$folder/installed" 2>/dev/null)" = "$(fingerprint "$name")" ]; then continue; fi
  echo "installing $name into $folder"
  if "$name" "$folder"; then fingerprint "$name" >"$folder/installed"; else failed+=("$name"); fi
done
[ ${#failed[@]} -eq 0 ] || { echo "could not be installed: ${failed[*]}" >&2; exit 1; }
