"""The server: where FedAvg stood, there is KAsync."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits_app import task
from kasync import rules
from kasync.live.flower import KAsync

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how well the model does."""
    run = context.run_config
    name, k = str(run["rule"]), int(run["k"])  # one of ours, or module:function
    facts = rules.facts(name)
    settings = facts.settings_of_run(int(run["clients"]), k) | {facts.rate: float(run["server-lr"])}
    strategy = KAsync(
        rule=rules.build(name, **settings),
        k=k,
        checkpoint=str(run["checkpoint"]) or None,
        timeline=str(run["timeline"]) or None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.network().state_dict()),
        num_rounds=int(run["num-server-rounds"]),
        timeout=300,
        evaluate_fn=evaluate,
    )
    print("final accuracy:", evaluate(0, result.arrays)["accuracy"], flush=True)


def evaluate(update: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on the server's own digits."""
    model = task.network()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord(task.test(model))
