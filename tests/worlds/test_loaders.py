"""Federations in the formats of LEAF, FLamby and flwr-datasets, in small: as mappings, risks and clients of a run."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import riskband as rb
from protocol.models import save_checkpoint
from riskband.checks import RefusedError
from simulations.__main__ import main
from worlds.loaders import NaturalClients, by_natural_id, flamby, leaf


def write_leaf(folder, name, data, **changed):
    """A file as LEAF's `split_data.py` writes it."""
    sizes = [len(each["y"]) for each in data.values()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"users": [*data], "num_samples": sizes, "user_data": data} | changed))


def made_up(num_users, *, seed=0):
    """Users with two numbers an example and a label that is mostly whether the first is the larger."""
    rng = np.random.default_rng(seed)
    found = {}
    for user in range(num_users):
        x = rng.random((rng.integers(5, 30), 2))
        y = (x[:, 0] > x[:, 1]) ^ (rng.random(len(x)) < 0.2 * rng.random())
        found[f"f{user:04d}_{user % 3}"] = {"x": x.tolist(), "y": y.astype(int).tolist()}
    return found


def in_two_files(folder, data):
    """The second half of the users comes in the first file."""
    names = list(data)
    for number, part in enumerate((names[len(names) // 2 :], names[: len(names) // 2])):
        write_leaf(folder, f"all_data_{number}_niid_0_keep_0_test_9.json", {name: data[name] for name in part})
    return folder


def test_users_of_leaf_come_in_order_of_their_names_whatever_the_files(tmp_path):
    data = made_up(7)
    clients = leaf(in_two_files(tmp_path, data))
    assert list(clients) == sorted(data)
    assert len(clients) == 7
    for name, (x, y) in clients.items():
        assert_array_equal(x, data[name]["x"])
        assert_array_equal(y, data[name]["y"])
        assert y.dtype == np.int64


def test_clients_are_shown_by_their_number():
    assert repr(numbered(12)) == "NaturalClients(12 clients)"


def test_what_leaf_leaves_of_dropped_users_is_no_client_and_hierarchies_may_be_there(tmp_path):
    data = {
        "MACBETH_MACBETH": {"x": ["to-morrow and", " to-morrow an"], "y": [" ", "d"]},
        "DROPPED": {"x": [], "y": []},
    }
    plays = {"hierarchies": ["Macbeth", "Hamlet"]}  # of all users, where it splits by sample
    write_leaf(tmp_path, "all_data_test_9.json", data, users=["MACBETH_MACBETH"], num_samples=[2], **plays)
    ((name, (x, y)),) = leaf(str(tmp_path)).items()
    assert (name, x.tolist(), y.tolist()) == ("MACBETH_MACBETH", *data["MACBETH_MACBETH"].values())


def test_examples_of_several_lengths_are_objects(tmp_path):
    x = [[["<BOS>", "a"]], [["<BOS>", "b"], ["c", "d"]]]
    write_leaf(tmp_path, "reddit.json", {"u": {"x": x, "y": [{"count_tokens": 1}, {"count_tokens": 3}]}})
    inputs, labels = leaf(tmp_path)["u"]
    assert (inputs.tolist(), inputs.shape) == (x, (2,))
    assert labels[1] == {"count_tokens": 3}


GOOD = {"a": {"x": [[0.5]], "y": [1]}}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"must hold \.json files, got none in .*; run its preprocess\.sh and name data/test"),
        (
            {"1": (GOOD, {}), "2": (GOOD, {})},
            r"must stand once in the files, got 'a' again in 2\.json; keep data",
        ),
        (
            {"1": ({"a": {"x": [[1]], "y": [1, 0]}}, {})},
            r"user 'a' in 1\.json must have as many .* got 1, 2 and 2; run",
        ),
        ({"1": (GOOD, {"num_samples": [4]})}, r"got 1, 1 and 4; run"),
        ({"1": ({}, {}), "2": ({}, {})}, r"must have users, got none in 2; run preprocess.sh with a smaller -k"),
        (
            {"1": (GOOD | {name: {"x": [], "y": []} for name in "bcdefgh"}, {})},
            r"every user must hold examples, got 7 with none: b, c, d, e, f; run preprocess.sh with -k 1, or take them",
        ),
        ({"1": (GOOD, {"users": ["a", "b"]})}, r"num_samples of each.* 1\.json has ValueError"),
        ({"1": (GOOD, {"user_data": {}})}, r"user_data, but 1\.json has KeyError \('a'\); leave only files of LEAF"),
        ({"1": (GOOD, {"users": 3})}, r"1\.json has TypeError"),
        ({"1": (GOOD, {"user_data": {"a": {"x": 3, "y": [1]}}})}, r"1\.json has TypeError"),
    ],
)
def test_files_that_leaf_did_not_write_so_are_refused(tmp_path, files, message):
    for name, (data, changed) in files.items():
        write_leaf(tmp_path, f"{name}.json", data, **changed)
    with pytest.raises(ValueError, match=message):
        leaf(tmp_path)


def test_a_broken_file_and_a_missing_folder_are_named(tmp_path):
    (tmp_path / "half.json").write_text('{"users": ["a"], ')
    with pytest.raises(ValueError, match=r"half\.json has JSONDecodeError"):
        leaf(tmp_path)
    with pytest.raises(ValueError, match=r"got none in .*/nowhere; run"):
        leaf(tmp_path / "nowhere")


class FedHeart(torch.utils.data.Dataset):
    """Shaped as FLamby's FedHeartDisease: labels are floats of shape (1,)."""

    num_built = 0

    def __init__(self, center=0, train=True, pooled=False, X_dtype=torch.float32, y_dtype=torch.float32):
        type(self).num_built += 1
        assert center in [0, 1, 2]
        assert not pooled
        size = 2 + center + 10 * train
        self.features = torch.arange(13 * size, dtype=X_dtype).reshape(size, 13) + 1000 * center
        self.labels = (torch.arange(size) % 2).to(y_dtype).reshape(size, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        assert idx < len(self.features), "Index out of range."
        return self.features[idx], self.labels[idx]


class FedSegmented(FedHeart):
    """Shaped as FedIXITiny: a mask for each image."""

    def __getitem__(self, idx):
        return self.features[idx], self.features[idx].reshape(1, 13) > 1005


class FedTiles(FedHeart):
    """Shaped as FedCamelyon16: a permutation beside each pair."""

    def __getitem__(self, idx):
        return *super().__getitem__(idx), np.arange(3)


class FedNobody(FedHeart):
    def __len__(self):
        return 0


def test_centres_of_flamby_are_built_when_they_are_asked_for():
    FedHeart.num_built = 0
    clients = flamby(FedHeart, num_centers=3)
    assert list(clients) == ["center-0", "center-1", "center-2"]
    assert FedHeart.num_built == 0
    x, y = clients["center-2"]
    assert FedHeart.num_built == 1
    assert_array_equal(x, FedHeart(center=2, train=False).features)
    assert (y.tolist(), y.dtype) == ([0, 1, 0, 1], np.int64)
    assert [len(y) for _, y in flamby(FedHeart, num_centers=3, train=True).values()] == [12, 13, 14]
    assert flamby(FedHeart, num_centers=3, X_dtype=torch.float64)["center-0"][0].dtype == np.float64


def test_labels_that_are_no_single_numbers_stay_as_they_are():
    x, y = flamby(FedSegmented, num_centers=2)["center-1"]
    assert (y.shape, y.dtype) == ((3, 1, 13), bool)
    assert_array_equal(y[:, 0], x > 1005)


class FedMeasured(FedHeart):
    """Labels are single numbers, of center 0 by chance whole."""

    def __getitem__(self, idx):
        return self.features[idx], self.labels[idx] + self.features[0, 0] / 2000


def test_labels_of_single_numbers_have_one_shape_at_all_clients():
    clients = flamby(FedMeasured, num_centers=2)
    assert [y.tolist() for _, y in clients.values()] == [[0, 1], [0.5, 1.5, 0.5]]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [(FedTiles, r"center 0 must hold pairs \(x, y\), got 3 values; give a class"), (FedNobody, "got no values; give")],
)
def test_centres_without_pairs_are_refused(dataset, message):
    with pytest.raises(ValueError, match=message):
        flamby(dataset, num_centers=2)["center-0"]


def test_there_is_at_least_one_center():
    with pytest.raises(ValueError, match=r"num_centers must be a whole number of at least 1, got 0; it is NUM_CLIENTS"):
        flamby(FedHeart, num_centers=0)


WRITERS = ["w2", "w1", "w2", "w3", "w2", "w1"]
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
CHARACTERS = [0, 2, 1, 1, 0, 2]


@pytest.fixture(name="writings", scope="module")
def _writings():
    """Images of three writers, as in flwrlabs/femnist."""
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image").fromarray
    kinds = {"image": datasets.Image(), "character": datasets.ClassLabel(names=["0", "1", "A"])}
    columns = {"image": [image(each) for each in PIXELS], "writer_id": WRITERS, "character": CHARACTERS}
    features = datasets.Features(kinds | {"writer_id": datasets.Value("string")})
    return datasets.Dataset.from_dict(columns, features=features)


def partitioner_of(dataset, column="writer_id"):
    partitioner = pytest.importorskip("flwr_datasets.partitioner").NaturalIdPartitioner(partition_by=column)
    if dataset is not None:
        partitioner.dataset = dataset
    return partitioner


def check_writers(clients):
    """Whatever the order in which a writer's examples come."""
    assert list(clients) == ["w1", "w2", "w3"]
    for name, (x, y) in clients.items():
        own = [row for row, writer in enumerate(WRITERS) if writer == name]
        assert (x.shape, x.dtype, y.dtype) == ((len(own), 4, 4), np.uint8, np.int64)
        assert {(each.tobytes(), label) for each, label in zip(x, y, strict=True)} == {
            (PIXELS[row].tobytes(), CHARACTERS[row]) for row in own
        }


def test_natural_ids_of_flwr_datasets_are_clients(writings):
    check_writers(by_natural_id(partitioner_of(writings), x="image", y="character"))


def test_so_are_those_of_a_federated_dataset(writings, tmp_path, monkeypatch):
    flwr_datasets = pytest.importorskip("flwr_datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "femnist").mkdir()
    writings.to_parquet(tmp_path / "femnist" / "train.parquet")
    federated = flwr_datasets.FederatedDataset(
        dataset=str(tmp_path / "femnist"), partitioners={"train": partitioner_of(None)}
    )
    with pytest.raises(ValueError, match=r"got FederatedDataset .*; set .*federated.partitioners\[\"train\"\]"):
        by_natural_id(federated, x="image", y="character")
    check_writers(by_natural_id(federated.partitioners["train"], x="image", y="character"))


def test_partitioners_that_give_no_clients_are_refused(writings):
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    nobodys = writings.select_columns(["image", "character"]).add_column("writer_id", [*WRITERS[:5], None])
    equal_parts = partitioners.IidPartitioner(num_partitions=2)
    equal_parts.dataset = partitioner_of(writings).dataset
    for partitioner, reason in (
        (partitioner_of(None), "dataset field should be set"),
        (partitioner_of(writings, "author"), "author"),
        (partitioner_of(nobodys), "NoneType"),
        (equal_parts, "partition_id_to_natural_id"),
    ):
        with pytest.raises(ValueError, match=rf"must be a NaturalIdPartitioner with a dataset .*{reason}.*; set its"):
            by_natural_id(partitioner, x="image", y="character")


def test_columns_that_are_not_there_are_named(writings):
    message = "x and y must be columns of image, writer_id, character, got label, pixels; name others"
    with pytest.raises(ValueError, match=message):
        by_natural_id(partitioner_of(writings), x="pixels", y="label")


def first_is_not_larger(x, y):
    return (x[:, 0] > x[:, 1]) != y


def test_risks_are_the_means_of_each_clients_losses(tmp_path):
    data = made_up(9)
    risks = leaf(in_two_files(tmp_path, data)).risks(first_is_not_larger, answered_by="trainers")
    wrong = {name: [(a > b) != y for (a, b), y in zip(*each.values(), strict=True)] for name, each in data.items()}
    assert risks.names == tuple(sorted(data))
    assert risks.num_examples.tolist() == [len(wrong[name]) for name in risks.names]
    assert risks.values.tolist() == pytest.approx([np.mean(wrong[name]) for name in risks.names])
    assert risks.binary
    assert risks.answered_by == "trainers"
    assert 0 < rb.mean_bound(risks, delta=0.05).value < 1


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda x, y: np.mean(x[:, 0]), r"one number for each of the 2 examples of client 'center-0', got shape \(\)"),
        (lambda x, y: x, r"got shape \(2, 13\); return them before"),
        (lambda x, y: x[:, 0], r"losses must be one number in \[0, 1\] for each example, got 13"),
    ],
)
def test_what_is_no_loss_of_single_examples_is_refused(losses, message):
    with pytest.raises(ValueError, match=message):
        flamby(FedHeart, num_centers=2).risks(losses)


def numbered(num_clients):
    return NaturalClients({f"{k:02d}": lambda k=k: (np.full(3, k), np.zeros(3, int)) for k in range(num_clients)})


def test_a_split_is_a_fair_draw_of_clients_that_a_seed_repeats():
    clients = numbered(10)
    asked, others = clients.split(4, seed=3)
    assert (len(asked), sorted([*asked, *others])) == (4, list(clients))
    assert list(asked) == list(clients.split(4, seed=3)[0])
    assert [x.tolist() for x, _ in asked.values()] == [[int(name)] * 3 for name in asked]
    drawn = np.sum([np.isin(list(clients), list(clients.split(4, seed=seed)[0])) for seed in range(2000)], axis=0)
    assert np.all(np.abs(drawn - 800) < 5 * np.sqrt(2000 * 0.4 * 0.6))  # of hypergeometric draws, each 4 in 10


@pytest.mark.parametrize("num_clients", [0, 10, 1.5])
def test_a_split_leaves_somebody_on_both_sides(num_clients):
    with pytest.raises(ValueError, match=r"num_clients must be .*, got .*; "):
        numbered(10).split(num_clients, seed=0)


def test_a_number_beyond_the_clients_is_refused_in_words_that_may_travel():
    assert numbered(3)(2)[0].tolist() == [2, 2, 2]
    for number in (3, -1):
        with pytest.raises(RefusedError, match="num-clients must be at most 3"):
            numbered(3)(number)


@pytest.mark.slow
def test_a_simulation_asks_users_of_leaf(tmp_path, monkeypatch):
    data = made_up(30)
    in_two_files(tmp_path / "test", data)
    (tmp_path / "leaf_clients.py").write_text(
        f"from worlds.loaders import leaf\n\nclients, others = leaf({str(tmp_path / 'test')!r}).split(20, seed=0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("leaf_clients", None)
    model = torch.nn.Linear(2, 2)
    model.load_state_dict({"weight": torch.tensor([[0.0, 1], [1, 0]]), "bias": torch.zeros(2)})
    save_checkpoint(model, tmp_path / "model.pt")
    (tmp_path / "leaf.toml").write_text(f"""
scenario = "leaf"
dataset = "leaf_clients:clients"
x-shape = "2"
num-classes = 2
model = "leaf_model:network"
training = "checkpoint"
checkpoint = "{tmp_path / "model.pt"}"
num-clients = 20
num-unseen = 0
figure-format = "none"
""")
    (tmp_path / "leaf_model.py").write_text(
        "import torch\n\n\ndef network(*, x_shape, num_classes):\n    return torch.nn.Linear(*x_shape, num_classes)\n"
    )
    assert main([str(tmp_path / "leaf.toml"), "--out", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    drawn = leaf(tmp_path / "test").split(20, seed=0)[0]
    rates = [np.mean([(a > b) != y for (a, b), y in zip(*data[name].values(), strict=True)]) for name in drawn]
    assert report["network"]["num_answered"] == 20
    assert report["network"]["mean_empirical_risk"] == pytest.approx(np.mean(rates), abs=1e-12)
    assert report["network"]["largest_empirical_risk"] == pytest.approx(max(rates), abs=1e-12)
    assert np.mean(rates) > 0
