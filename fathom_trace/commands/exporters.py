"""List the exporters and how far each is proven, or describe one: its target, how to run it, its options."""

from __future__ import annotations

import argparse

from fathom_trace.arguments import add_json

EXAMPLES = ("fathom-trace exporters", "fathom-trace exporters scale-sim")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the exporter to describe; - and _ are the same")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the description."""
    from fathom_trace.exporters import REGISTRY
    from fathom_trace.options import describe_options
    from fathom_trace.terminal import print_json, print_pairs

    if arguments.name is None:
        return _list(arguments.json)
    name = REGISTRY.resolve(arguments.name)
    exporter = REGISTRY.load(name)
    target, options = exporter.TARGET, describe_options(exporter.Options())
    if arguments.json:
        print_json({"name": name, "description": exporter.__doc__, "target": target, "options": options})
        return 0
    print(f"{name}: {(exporter.__doc__ or '').strip()}\n\ntarget")
    print_pairs(
        [
            ("program", f"{target.name} {target.version}"),
            ("where", target.url),
            ("proof", f"{target.proof}: {target.proof_detail}"),
            ("to run it", target.how_to_run),
        ],
        indent="  ",
    )
    print("\noptions (--set name=value)")
    print_pairs([(f"{o.name}={o.default}", f"{o.doc} ({o.type})") for o in options], indent="  ")
    return 0


def _list(as_json: bool) -> int:
    """All exporters; one that breaks its contract says so in its line, and is a failure in the end."""
    from fathom_trace.errors import FathomError
    from fathom_trace.exporters import REGISTRY
    from fathom_trace.terminal import print_json, print_table

    found: dict[str, dict[str, object]] = {}
    rows = []
    for name, summary in REGISTRY.summaries().items():
        try:
            target = REGISTRY.load(name).TARGET
            found[name] = {"summary": summary, "target": target}
            rows.append((name, f"{target.name} {target.version}".strip(), target.proof, summary))
        except FathomError as error:
            found[name] = {"summary": summary, "error": str(error)}
            rows.append((name, "-", "unusable", str(error)))
    print_json(found) if as_json else print_table(("exporter", "target", "proof", "what it writes"), rows, left=range(4))
    return 1 if any("error" in entry for entry in found.values()) else 0
