"""How are experiments run where only torch and numpy are installed? python -m kasync.experiments reproduce ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kasync.errors import UserError
from kasync.experiments import catalogue
from kasync.experiments.display import Lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit code: 0 done, 1 some runs failed, 2 something asked for cannot be."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.tf32:
            from kasync.experiments.runner import allow_tf32

            allow_tf32(options.device, options.engine)
        return options.do(options)
    except UserError as problem:
        print(f"kasync: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kasync: stopped; the same command continues where it was.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kasync.experiments", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    reproduce = verbs.add_parser("reproduce", help="make the runs of tables and figures")
    reproduce.set_defaults(do=_reproduce)
    reproduce.add_argument("names", nargs="*", help=f"{', '.join(catalogue.names())}; all without a name")
    reproduce.add_argument("--staleness", default="true", help="true, published-code or both")
    reproduce.add_argument("--tuned", help="file of chosen settings, as tune writes it")
    tune = verbs.add_parser("tune", help="give every rule the same budget of learning rates on held-out samples")
    tune.set_defaults(do=_tune)
    tune.add_argument("names", nargs="+")
    tune.add_argument("--budget", type=int, default=7, help="learning rates per rule")
    tune.add_argument("--spacing", type=float, default=10**0.5, help="factor between neighbouring rates")
    tune.add_argument("--further", type=int, default=0, help="rates beyond the end of a grid whose end was best")
    tune.add_argument("--knob", action="store_true", help="then try values of each rule's main knob")
    tune.add_argument(
        "--per", default="task", choices=("task", "problem"), help="choose for every task, or one of each problem"
    )
    for verb in (reproduce, tune):
        verb.add_argument("--seeds", type=int, default=None)
        verb.add_argument("--scale", default="quick", choices=catalogue.SCALES)
        verb.add_argument("--rules", default="", help="only these, separated by commas")
        verb.add_argument("--tasks", default="", help="only these, names or patterns such as 'cifar10*', likewise")
        verb.add_argument("--device", default="cpu")
        verb.add_argument("--jobs", type=int, default=1, help="runs at once on a GPU, stacked where alike")
        verb.add_argument("--tf32", action="store_true", help="faster, rounder products for the clients' gradients")
        verb.add_argument("--engine", default="local")
        verb.add_argument("--root", default="", help="folder of the data; $KASYNC_DATA without it")
        verb.add_argument("--steps", type=int, default=None, help="instead of each task's own")
        verb.add_argument("--out", default="results", type=Path)
        verb.add_argument("--quiet", action="store_true")
    return parser


def _overrides(options: Any) -> dict[str, Any]:
    steps = {"steps": options.steps} if options.steps else {}
    return {"device": options.device, "root": options.root, **steps}


def _shared(options: Any) -> dict[str, Any]:
    only = {name: [each for each in vars(options)[name].split(",") if each] or None for name in ("rules", "tasks")}
    return {"scale": options.scale, "seeds": options.seeds, "overrides": _overrides(options), **only}


def _how(options: Any) -> dict[str, Any]:
    display = None if options.quiet else Lines()
    return {"engine": options.engine, "jobs": options.jobs, "display": display}


def _reproduce(options: Any) -> int:
    from kasync.experiments import reproduce

    planned = reproduce.plan(options.names, staleness=options.staleness, tuned=options.tuned, **_shared(options))
    outcome = reproduce.carry_out(planned, options.out, **_how(options))
    for row in reproduce.rows(planned, options.out):
        print("  ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    return 1 if outcome.failed else 0


def _tune(options: Any) -> int:
    from kasync.experiments import tune

    search = {name: vars(options)[name] for name in ("budget", "spacing", "further", "knob", "per")}
    for name in options.names:
        path = tune.tune(name, options.out, **search, **_shared(options), **_how(options))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
