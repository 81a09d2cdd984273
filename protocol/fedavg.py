"""What the messages of flwr's own FedAvg hold: federated training speaks to it, so the names are Flower's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protocol.records import read, read_record, to_array_record, to_arrays

ARRAYS_RECORD = "arrays"
CONFIG_RECORD = "config"
METRICS_RECORD = "metrics"
ROUND_KEY = "server-round"
LOSS_KEY = "train-loss"
NUM_EXAMPLES_KEY = "num-examples"


def decode_training(content: RecordDict) -> tuple[dict[str, np.ndarray], int]:
    """Return the model's weights and the round number (from 1) from a message of flwr's FedAvg.

    Raises
    ------
    ValueError
        If a record or key is missing or ill-typed.
    """
    config = read_record(content, CONFIG_RECORD, ConfigRecord)
    server_round = read(config, CONFIG_RECORD, ROUND_KEY, int)
    return to_arrays(read_record(content, ARRAYS_RECORD, ArrayRecord)), server_round


def encode_trained(arrays: Mapping[str, np.ndarray], *, num_examples: int, loss: float) -> RecordDict:
    """Return the reply that flwr's FedAvg averages with weight `num_examples`; `loss` in nats."""
    metrics = MetricRecord({LOSS_KEY: float(loss), NUM_EXAMPLES_KEY: int(num_examples)})
    return RecordDict({ARRAYS_RECORD: to_array_record(arrays), METRICS_RECORD: metrics})


def num_training_examples(content: RecordDict) -> int:
    """Return how many examples the model in a reply was trained on, 0 where none did; raises ValueError as `read`."""
    return read(read_record(content, METRICS_RECORD, MetricRecord), METRICS_RECORD, NUM_EXAMPLES_KEY, int)
