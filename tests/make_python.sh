#!/usr/bin/env bash
# Prints the path of a Python 3.12 or later for the simulators that need one, and makes it first where there is none.
#
#   bash tests/make_python.sh
#
# The first of these that has all modules a virtual environment needs is taken: PYTHON_NEWER; python3, python3.13 and python3.12
# on the PATH; those of pyenv; and on Debian, the python3.13 of its release 13, unpacked into a folder and never installed.
#
# PYTHON_NEWER         the Python to take; `debian` makes that of Debian 13 whatever else there is
# FATHOM_ENVIRONMENTS  where that is unpacked, into python3.13 (default ~/.venvs); what is there is used again
set -euo pipefail

release=trixie
folder="$(realpath -m "${FATHOM_ENVIRONMENTS:-$HOME/.venvs}")/python3.13"
modules='import ctypes, ensurepip, lzma, sqlite3, ssl, sys, venv; assert sys.version_info >= (3, 12)'

fail() {
    echo "make_python.sh: no Python 3.12 or later: $1; give one as PYTHON_NEWER" >&2
    exit 1
}

found() { # prints the Python itself if it will do
    "$1" -c "$modules; print(sys.executable)" 2>/dev/null
}

if [ "${PYTHON_NEWER:-debian}" != debian ]; then
    found "$PYTHON_NEWER" || fail "$PYTHON_NEWER is none, or lacks modules"
    exit 0
fi
if [ -z "${PYTHON_NEWER:-}" ]; then
    pyenv="$(pyenv root 2>/dev/null || true)/versions"
    for python in python3 python3.13 python3.12 "$pyenv"/3.13.*/bin/python3 "$pyenv"/3.12.*/bin/python3; do
        found "$python" && exit 0
    done
fi

found "$folder/usr/bin/python3.13" && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "this is no Debian, whose packages would have one"
# shellcheck source=/dev/null
installed="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: >"$work/status" # of the installed packages: none, so that whatever is needed is fetched
# The machine's own Debian sources, for the later release: those that name the installed one as their suite.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$file" ] || continue
    case "$file" in
    *.sources)
        awk -v old="$installed" -v new="$release" 'BEGIN { RS = ""; ORS = "\n\n" }
            ("\n" $0 "\n") ~ ("\nSuites:([^\n]*[ \t])?" old "[ \t\n]") { sub(/Suites:[^\n]*/, "Suites: " new); print }' \
            "$file" >"$work/sources/$(basename "$file")"
        ;;
    *.list) sed -nE "s/^(deb (\[[^]]*\] )?[^ ]+) $installed (.*)/\1 $release \3/p" "$file" >"$work/sources/$(basename "$file")" ;;
    esac
done
apt() {
    apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources" -o Dir::State::lists="$work/lists" \
        -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o Dir::Etc::preferences=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null -o Debug::NoLocking=true -o APT::Sandbox::User="$(id -un)" "$@" >>"$work/log" 2>&1
}
apt update && apt install --download-only --no-install-recommends --yes python3.13-venv libstdc++6 || {
    tail -n 5 "$work/log" >&2
    fail "apt-get could not fetch Debian's python3.13 of $release"
}
for package in "$work"/cache/archives/*.deb; do
    dpkg -x "$package" "$work/root"
done
loader="$(find "$work/root" -type f -name 'ld-linux*.so.*' | head -n 1)"
[ -n "$loader" ] || fail "Debian's packages have no loader"
# Its libraries are newer than the machine's, so it starts through its own loader; as argv0 it gets the path that it was called by, which
# tells it where it is: in a virtual environment, that environment.
libraries="$folder/${loader#"$work/root/"}"
libraries="${libraries%/*}"
program="$work/root/usr/bin/python3.13"
mv "$program" "$program.elf"
printf '#!/bin/sh\nexec %q --library-path %q --argv0 "$0" %q "$@"\n' \
    "$libraries/${loader##*/}" "$libraries" "$folder/usr/bin/python3.13.elf" >"$program"
chmod +x "$program"
# Debian keeps the wheels that ensurepip installs under /usr/share.
sed -i "s|/usr/share/python-wheels|$folder/usr/share/python-wheels|" "$work/root"/usr/lib/python3.13/_sysconfigdata*.py
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$work/root" "$folder"
found "$folder/usr/bin/python3.13" || fail "Debian's python3.13 does not run here"
