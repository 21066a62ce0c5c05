"""FLSim's AsyncTrainer: FedBuff, as many clients in flight as there are, exponential durations.

FLSim 0.1.0 gives its settings' classes defaults that cannot be hashed, which Python refuses since 3.11; its classes,
and no others, are made hashable while it is imported. Its local work is counted in epochs, so a client holds one batch.
"""

import copy
import dataclasses
import importlib.metadata

from pace import Pace
from task import BATCH, LR, K, given
from torch.nn.functional import cross_entropy

plain = dataclasses.dataclass


def hashable(cls=None, /, **how):
    """`dataclass`, but with a hash for FLSim's own classes."""
    if cls is None:
        return lambda given: hashable(given, **how)
    return plain(cls, **how, **({"unsafe_hash": True} if cls.__module__.startswith("flsim") else {}))


dataclasses.dataclass = hashable
from flsim.clients.base_client import ClientConfig  # noqa: E402
from flsim.data.data_provider import FLDataProviderFromList  # noqa: E402
from flsim.interfaces.model import IFLModel  # noqa: E402
from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig  # noqa: E402
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig  # noqa: E402
from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig  # noqa: E402
from flsim.utils.async_trainer import async_staleness_weights, async_weights, training_event_generator  # noqa: E402
from flsim.utils.simple_batch_metrics import FLBatchMetrics  # noqa: E402
from flsim.utils.timing.training_duration_distribution import (  # noqa: E402
    PerUserExponentialDurationDistributionConfig,
)
from omegaconf import OmegaConf  # noqa: E402

dataclasses.dataclass = plain
CHANGE = "its settings' classes made hashable while it is imported (Python 3.11 refuses their defaults otherwise)"


class Wrapped(IFLModel):
    """The network as FLSim wants it; the forward pass of a client is where updates are counted."""

    def __init__(self, module, pace):
        self.module, self.pace = module, pace

    def __deepcopy__(self, memo):
        return Wrapped(copy.deepcopy(self.module, memo), self.pace)

    def fl_forward(self, batch):
        self.pace.done(1)
        inputs, labels = batch
        outputs = self.module(inputs)
        loss = cross_entropy(outputs, labels)
        return FLBatchMetrics(
            loss=loss, num_examples=len(labels), predictions=outputs, targets=labels, model_inputs=inputs
        )

    def fl_create_training_batch(self, batch=None, **kwargs):
        return batch

    def fl_get_module(self):
        return self.module

    def fl_cuda(self):
        self.module.cuda()

    def get_eval_metrics(self, batch):
        return self.fl_forward(batch)

    def get_num_examples(self, batch):
        return len(batch[1])


task, pace = given(), Pace()
model = Wrapped(task.model, pace)
users = []
for client in range(task.clients):
    part = task.slice_of(client)
    users.append([(task.inputs[part][:BATCH], task.labels[part][:BATCH])])
arrivals = training_event_generator.AsyncTrainingEventGeneratorConfig(
    training_start_time_distribution=training_event_generator.PoissonAsyncTrainingStartTimeDistrConfig(
        training_rate=float(task.clients)
    ),
    duration_distribution_generator=PerUserExponentialDurationDistributionConfig(training_duration_mean=1.0),
)
weight = async_weights.AsyncWeightConfig(
    staleness_weight=async_staleness_weights.PolynomialStalenessWeightConfig(exponent=0.5)
)
settings = AsyncTrainerConfig(
    aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=1.0, buffer_size=K),
    training_event_generator=arrivals,
    async_weight=weight,
    client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=LR)),
    epochs=1e6,
    do_eval=False,
    report_train_metrics=False,
)
trainer = AsyncTrainer(model=model, **OmegaConf.structured(settings))
provider = FLDataProviderFromList(users, [], [], model)
pace.ready(
    version=importlib.metadata.version("flsim"),
    mode="AsyncTrainer, FedBuff, asynchronous, virtual clock",
    changes=CHANGE,
)
trainer.train(provider, None, task.clients)
