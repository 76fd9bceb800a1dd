#!/usr/bin/env bash
# Writes the image's lists of Python packages, with the digests of all their files: `make requirements`.
#   requirements.txt         what firnline needs: pyproject.toml, resolved
#   requirements-extras.txt  what the extras trino, mysql and adls need besides
#   requirements-build.txt   what builds packages that have no wheel (pyspark, firnline itself)
# Versions stay as they are while they are within the bounds of pyproject.toml; `--upgrade` takes the newest.
set -euo pipefail

cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly LISTS=deploy/docker UV=.venv/tools/bin/uv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compile() {
    "$UV" pip compile --quiet --python-platform linux --python-version 3.11 --no-annotate --no-header \
        --generate-hashes "$@" >/dev/null
}

pins() { sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' "$1"; }

with_head() { # FILE TEXT
    { printf '# %s\n# pip refuses a file that differs from its digest. `make requirements` writes this list.\n' "$2" && cat "$scratch/made"; } >"$1"
}

cp "$LISTS/requirements.txt" "$scratch/made"
compile "$@" -o "$scratch/made" pyproject.toml
with_head "$LISTS/requirements.txt" "Every Python package of the image, exactly: pyproject.toml resolved for Python 3.11 on Linux."
pins "$LISTS/requirements.txt" >"$scratch/base"

cp "$LISTS/requirements-extras.txt" "$scratch/made" 2>/dev/null || true
compile "$@" -o "$scratch/made" -c "$scratch/base" --extra trino --extra mysql --extra adls pyproject.toml
awk 'NR == FNR { base[$1]; next } /==/ { kept = !($1 in base) } kept' "$scratch/base" "$scratch/made" >"$scratch/rest"
mv "$scratch/rest" "$scratch/made"
with_head "$LISTS/requirements-extras.txt" "What EXTRAS=trino,mysql,adls adds to requirements.txt."

cp "$LISTS/requirements-build.txt" "$scratch/made" 2>/dev/null || true
echo 'setuptools>=77' >"$scratch/build.in"
compile "$@" -o "$scratch/made" "$scratch/build.in"
with_head "$LISTS/requirements-build.txt" "What builds firnline, and pyspark, which has no wheel."
