"""Which metrics are means of losses in [0, 1] over a client's examples, by their names and by their values."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import riskband as rb
from riskband.answers.counts import share_problem
from riskband.answers.metrics import metric_problem
from riskband.flower import KeepRisks

# As Flower's examples, scikit-learn, Keras, torchmetrics, xgboost and COCO call them, and as people do.
SCORES = [
    *("auc", "AUC", "eval_auc", "eval-auc", "evalAuc", "val_auc_1", "auc@0.5", "AUC/val", "roc_auc_score", "ROCAUC"),
    *(
        "roc_auc_ovr",
        "MulticlassAUROC",
        "aucpr",
        "pr_auc",
        "AUPRC",
        "average_precision",
        "f1",
        "val-f1-score",
        "F1Score",
    ),
    *("MulticlassF1Score", "f1_macro", "fbeta_score", "f-measure", "precision", "r2", "R2Score", "r_squared", "MCC"),
    *("matthews_corrcoef", "cohen_kappa_score", "bleu", "perplexity", "mAP", "mAP50", "AP50", "map_50", "rmse", "gini"),
    *("balanced_accuracy", "macro avg accuracy", "pearson_r", "c-index", "1 - AUC", "m.pt/val_auc"),
    *("R²", "F₁", "bal_acc", "UAR", "spearmanr", "aucs", "nDCG", "val_ssim"),
]
MAYBE = [
    *("cross_entropy", "crossEntropy", "CrossEntropyLoss", "sparse_categorical_crossentropy", "NLLLoss", "nll", "bce"),
    *("BCEWithLogitsLoss", "logloss", "mlogloss", "neg_log_loss", "mse", "MSELoss", "mean_squared_error", "eval_mae"),
    *(
        "mean_absolute_error",
        "hinge",
        "eval_loss",
        "val_loss",
        "valLoss",
        "test-loss",
        "train_loss",
        "kl_div",
    ),
]
MAYBE_ACCURACIES = [
    *("dice", "DiceScore", "iou", "mIoU", "MeanIoU", "mean_io_u", "jaccard_index", "recall", "sensitivity"),
    "specificity",
]
MEANS = [
    *("accuracy", "eval_acc", "Acc@1", "top5_accuracy", "error", "merror", "error_rate", "loss", "brier", "zero_one"),
    *("faucet", "roadmap", "precisely", "recalled", "dicey", "emaerror", "launch_error", "hospital_faultcount"),
    *("val - prediction - accuracy", "SRV_FL_global_model.pt/accuracy", "SRV_best_FL_global_model.pt/val_accuracy"),
    *("wrong", "false_share", "mean01", "größe", ""),
]


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_refused_by_name_whatever_is_said(name):
    for binary in (None, True, False):
        assert "names a score" in metric_problem(name, binary=binary)
        with pytest.raises(
            ValueError,
            match=r"no mean of one number for each example.*give the accuracy or the error.*say that it is a score",
        ):
            rb.ClientRisks.from_frame({name: [0.1, 0.2]}, loss=name, num_examples=10, binary=binary)
        for kind in ("accuracy", "error", "loss"):
            with pytest.raises(ValueError, match="names a score"):
                KeepRisks(**{kind: name}, binary=binary)


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "loss") for name in MAYBE), *((name, "accuracy") for name in MAYBE_ACCURACIES)]
)
def test_what_may_lie_anywhere_or_count_other_examples_needs_the_users_word(name, kind):
    frame, named = {name: [0.1, 0.2]}, {kind: name}
    with pytest.raises(ValueError, match=r"not known to be a mean of one number in \[0, 1\].*say binary=False"):
        rb.ClientRisks.from_frame(frame, **named, num_examples=10)
    assert not rb.ClientRisks.from_frame(frame, **named, num_examples=10, binary=False).binary
    assert rb.ClientRisks.from_frame(frame, **named, num_examples=10, binary=True).binary
    for kind in ("accuracy", "error", "loss"):
        with pytest.raises(ValueError, match="not known to be a mean"):
            KeepRisks(**{kind: name})
        KeepRisks(**{kind: name}, binary=False)


@pytest.mark.parametrize("name", MEANS)
def test_other_names_say_nothing(name):
    assert metric_problem(name, binary=None) == ""
    KeepRisks(accuracy=name)
    KeepRisks(error=name)
    with pytest.raises(ValueError, match="not known to be a mean"):  # that of a training is a cross-entropy
        KeepRisks(loss=name)


def batch_means(right, size):
    """The share of right ones in float32, as a mean of the means of batches that each counts with its size."""
    batches = np.split(right.astype(np.float32), np.arange(size, right.size, size))
    total = np.float32(0.0)
    for batch in batches:
        total += batch.mean(dtype=np.float32) * np.float32(batch.size)
    return float(total / np.float32(right.size))


@pytest.mark.parametrize("num_examples", [1, 2, 7, 38, 60, 997, 20_000])
def test_no_share_is_called_impossible_however_it_was_rounded(num_examples):
    rng = np.random.default_rng(num_examples)
    counts = rng.integers(0, num_examples + 1, 60)
    sizes, shares = np.full(60, num_examples), counts / num_examples
    rounded = [np.round(shares, digits) for digits in range(1, 9)]
    floats = [shares.astype(kind).astype(np.float64) for kind in (np.float16, np.float32)]
    percent = [np.round(100 * shares, digits) / 100 for digits in (1, 2, 3)]
    flags = [rng.permutation(np.arange(num_examples) < count) for count in counts]
    summed = [np.array([batch_means(right, 32) for right in flags])]
    for values in (shares, 1.0 - shares, *rounded, *floats, *percent, *summed):
        assert share_problem(values, sizes) == ""


def test_the_auc_of_so_many_examples_is_nearly_always_seen_to_be_no_share():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        positive, negative = rng.normal(1.0, size=(11, 17)), rng.normal(size=(27, 17))
        aucs = mannwhitneyu(positive, negative).statistic / (11 * 27)
        found.append(share_problem(aucs, np.full(17, 38)) != "")
    assert np.mean(found) == 1.0


def test_one_example_for_every_client_is_a_doubt_unless_the_means_are_counts():
    with pytest.warns(UserWarning, match="every client has 1 example, as if num_examples were the number of batches"):
        rb.ClientRisks([0.05, 0.1, 0.0], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rb.ClientRisks([0.05, 0.1, 0.0], 1, False)
        rb.ClientRisks([0.0, 1.0, 0.0], 1)
    with pytest.raises(ValueError, match=r"0.05 of 1 example is impossible \(as in 2 of 3 clients\): is num_examples"):
        rb.ClientRisks([0.05, 0.1, 0.0], 1, True)
