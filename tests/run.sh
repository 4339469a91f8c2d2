#!/usr/bin/env bash
# Installs what the tests need, real simulators among it, and runs every test. Further arguments go to pytest.
#
#   bash tests/run.sh
#
# FATHOM_ENVIRONMENTS        folder for the virtual environments (default ~/.venvs); what is there is used again
# FATHOM_REQUIRE_SIMULATORS  0: skip the tests of a simulator that is not there (default 1: they fail)
# PYTHON                     the Python to begin with, 3.11 or later (default python3)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export FATHOM_ENVIRONMENTS="${FATHOM_ENVIRONMENTS:-$HOME/.venvs}"
export FATHOM_REQUIRE_SIMULATORS="${FATHOM_REQUIRE_SIMULATORS:-1}"
tests="$FATHOM_ENVIRONMENTS/fathom-tests"

[ -x "$tests/bin/python" ] || "${PYTHON:-python3}" -m venv "$tests"
"$tests/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[test]'
PYTHON="$tests/bin/python" bash tests/make_simulators.sh
exec "$tests/bin/python" -m pytest -n 2 --dist loadfile "$@" # a file on one worker: its traces are made once
