"""Which commands are there?"""

from __future__ import annotations

import typer

from kasync.cli import bench, compare, data, demo, experiments, plan, report, rules, run, theory

app = typer.Typer(
    help="Asynchronous federated learning: simulated at full scale, checked against the paper, deployed unchanged.\n\n"
    "Begin with: kasync demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(run.run)
app.command()(compare.compare)
app.command()(experiments.reproduce)
app.command()(experiments.tune)
app.command()(report.report)
app.command()(rules.rules)
app.command()(plan.plan)
app.command()(theory.theory)
app.add_typer(data.app, name="data")
app.command()(bench.bench)
