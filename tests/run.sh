#!/usr/bin/env bash
# Installs what the tests need, real simulators among it, and runs every test. Further arguments go to pytest.
#
#   bash tests/run.sh
#
# FATHOM_ENVIRONMENTS  folder for the virtual environments (default ~/.venvs); what is there is used again
# PYTHON               the Python to begin with, 3.11 or later (default python3)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
environments="${FATHOM_ENVIRONMENTS:-$HOME/.venvs}"
tests="$environments/fathom-tests"
export FATHOM_SIMULATORS="${FATHOM_SIMULATORS:-$environments/simulators}"

[ -x "$tests/bin/python" ] || "${PYTHON:-python3}" -m venv "$tests"
"$tests/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[test]'
PYTHON="$tests/bin/python" bash tests/make_simulators.sh
export FATHOM_REQUIRE_SIMULATORS="${FATHOM_REQUIRE_SIMULATORS:-1}"
exec "$tests/bin/python" -m pytest -n 2 "$@"
