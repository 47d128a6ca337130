#!/usr/bin/env bash
# Installs mmrl and its plugins under each other Python that the machine has of those named, and runs the unit tests of the rooms that need
# no models: `tests/pythons.sh 3.12 3.13`. torch is large and its CPU build not everywhere: what asks for it is left out, and named.
set -uo pipefail
cd "$(dirname "$0")/.."
tests=(tests/api/test_*.py tests/config/test_*.py tests/registry/test_*.py)
needs_torch='^ *(import|from) torch'

interpreter() {  # its path, by a version such as 3.12
  local python
  for python in "python$1" "$HOME/.pyenv/versions/$1."*/bin/python; do
    if "$python" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$python"; return
    fi
  done
  return 1
}

install() {
  local install=(.venv/bin/python tests/support/install.py "$1/bin/python" -c constraints.txt) plugins=() file
  while read -r file; do plugins+=(-e "$(dirname "$file")"); done < <(grep -L '"torch>' plugins/*/pyproject.toml sims/*/pyproject.toml)
  "${install[@]}" hatchling editables && "${install[@]}" --no-build-isolation -e ".[test,mathematics,pictures]" av datasets "${plugins[@]}"
}

failed=()
for version in "$@"; do
  if ! python=$(interpreter "$version"); then
    echo "skipped: there is no Python $version with venv here"; continue
  fi
  folder=.pythons/$version
  stamp=$(cat "$0" constraints.txt pyproject.toml plugins/*/pyproject.toml sims/*/pyproject.toml | cksum)
  if [ "$(cat "$folder/installed" 2>/dev/null)" != "$stamp" ]; then
    echo "installing mmrl for Python $version into $folder"
    if ! { "$python" -m venv --clear "$folder" && install "$folder"; }; then failed+=("$version: not installed"); continue; fi
    echo "$stamp" >"$folder/installed"
  fi
  echo "Python $version, left out since they need torch: $(grep -lE "$needs_torch" "${tests[@]}" | xargs)"
  grep -LE "$needs_torch" "${tests[@]}" \
    | OMP_NUM_THREADS=1 xargs "$folder/bin/python" -m pytest -q -n 2 -p no:cacheprovider -m "not slow and not long and not gpu" \
    || failed+=("$version: tests failed")
done
[ ${#failed[@]} -eq 0 ] || { printf 'Python %s\n' "${failed[@]}" >&2; exit 1; }
