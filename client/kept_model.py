"""The weights that a client was asked about last, kept so that further questions about them need not carry them.

They lie beside its answer record, in one file that holds nothing else; without a record nothing is kept. Weights count
by their hash alone, whatever the file says: clients may share it, and damage or another's weights are no more than a
model that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context, Message

from client.answer_record import record_from_config
from protocol import wire
from protocol.hashes import model_hash


@dataclass(frozen=True)
class KeptModel:
    """Where the weights are kept; None: nowhere."""

    path: Path | None

    def find(self, sent_hash: str) -> dict[str, np.ndarray]:
        """Return the weights with this hash; raises UnknownModelError if they are not there. Nothing is unpickled."""
        with suppress(Exception):  # numpy's reader raises many things, and whatever it is, they are not there
            assert self.path is not None
            with self.path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                found = {name: file[f"arr_{place}"] for place, name in enumerate(file["arr_0"].tolist(), start=1)}
            if model_hash(found) == sent_hash:
                return found
        raise wire.UnknownModelError

    def keep(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Keep these weights in place of others, for their owner alone, and return whether that was possible."""
        if self.path is None:
            return False
        part = self.path.with_suffix(f"{self.path.suffix}.part")
        with suppress(OSError):
            part.touch(mode=0o600)
            with part.open("wb") as file:
                np.savez(file, np.array([*arrays]), *arrays.values())
            part.replace(self.path)
            return True
        with suppress(OSError):
            part.unlink(missing_ok=True)  # on a full disk that is room for what matters more
        return False


def weights_of(message: Message, context: Context) -> dict[str, np.ndarray]:
    """Return the weights that a question is about, from the message or, where that has their hash alone, as kept.

    Raises ValueError if the message has neither; UnknownModelError as `KeptModel.find`.
    """
    sent_hash = wire.kept_hash(message.content)
    return wire.decode_weights(message.content) if sent_hash is None else _kept(context).find(sent_hash)


def kept_after(answer: object, message: Message, context: Context) -> str | None:
    """Return the hash of the weights that an answer is about, if it is about any and they are kept from now on."""
    sent_hash: str | None = getattr(answer, "model_hash", None)
    if sent_hash is None or wire.kept_hash(message.content) == sent_hash:
        return sent_hash
    arrays = wire.decode_weights(message.content)
    return sent_hash if arrays and _kept(context).keep(arrays) else None


def _kept(context: Context) -> KeptModel:
    record = record_from_config(context.node_config).path
    return KeptModel(None if record is None else record.with_name(f"{record.name}.model.npz"))
