"""What is known of a metric but for its values: by its name, and which clients had no examples to take it over."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence

# Words of a name, glued together where they are several.
_NO_MEANS = """
    ap auc aucpr aucroc aucs auprc aupr auroc bacc balacc balaccuracy balancedacc balancedaccuracy balancederrorrate ber
    bleu cer cindex concordance correlation ece eer explainedvariance f1 f1score f2 fbeta fmeasure fscore gini gmean
    harrellc hausdorff hd95 kappa lpips macro map matthews mcc median mrr ndcg pearson pearsonr perplexity ppl prauc
    prec precision psnr qwk r2 rmse roc rocauc rsquared spearman spearmanr ssim uar wer youden
"""
_MAY_BE_NONE = """
    absoluteerror bce ce crossentropy crossentropyloss deviance dice elbo evalloss fnr focal fpr hinge huber iou
    jaccard kl kld loglikelihood logloss mae mape miou mlogloss mse nll npv ppv recall rouge sens sensitivity smape
    smoothl1 specificity squarederror testloss tnr tpr trainingloss trainloss validationloss validloss valloss xent
"""
# Where 1 is best, and where 0 is; a name that has words of both, such as "Brier score", says neither.
_SCORES = """
    acc accuracy correct dice iou jaccard miou npv ppv recall rouge score sens sensitivity specificity testacc tnr tpr
    valacc
"""
_LOSSES = """
    brier crossentropy err error errorrate errors evalloss fnr fpr incorrect logloss loss losses mae misclassification
    nll risk risks testloss trainloss validloss valloss wrong
"""
_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
_METRIC = re.compile(
    r"(metric|measure|score|criterion)([ _-]?name)?", re.IGNORECASE
)  # column that says what a number is
_MOST_NAMED = 10
_MOST_WORDS = 3  # of one term, as Keras's mean_io_u has and CamelCase may


def metric_problem(name: str, *, binary: bool | None, is_any: bool = False, word: str = "binary=False") -> str:
    """Say why a metric of that name may be no mean of a loss in [0, 1] for each example; "" if nothing says so.

    Parameters
    ----------
    name : str
        As the clients call it, in any spelling.
    binary : bool or None
        What the user said of the loss of every example: that it is 0 or 1, that it lies in [0, 1], or nothing.
    is_any : bool
        Whether it may be any loss, so that the user's word is needed whatever its name.
    word : str
        How the user says it.
    """
    if found := _term_in(name, _NO_MEANS):
        return (
            f"{name!r} names a score ({found}) that is no mean of one number for each example: limits by the number of "
            "examples do not hold for it; give the accuracy or the error rate, at a threshold fixed beforehand, "
            "or say that it is a score (docs/scores.md)"
        )
    if binary is None and (is_any or _term_in(name, _MAY_BE_NONE)):
        return (
            f"{name!r} is not known to be a mean of one number in [0, 1] for each example that num_examples counts: a "
            f"loss must be scaled and cut by limits that were fixed before the data; if it is such a mean, say {word}, "
            "otherwise give the accuracy or the error rate"
        )
    return ""


def loss_problem(name: str, score: str) -> str:
    """Say why a column of that name does not hold a score of which more is better; "" if nothing does."""
    if _term_in(name, _SCORES) or not _term_in(name, _LOSSES):
        return ""
    rule = f"column {name!r} has the name of a loss, where 0 is best, so it cannot be read as {score}, of which more is"
    return f"{rule} better; name the column with {score} (--column); if it holds {score}, rename it"


def direction_problem(name: str, said: str, *, remedy: str) -> str:
    """Say why a column of that name does not hold losses, or accuracies if the user `said` so; "" if nothing does.

    `remedy` is how the user says that it holds accuracies.
    """
    is_score, is_loss = (bool(_term_in(name, words)) for words in (_SCORES, _LOSSES))
    if is_score == is_loss or is_score == bool(said):
        return ""
    kind, best, read = ("loss", 0, "accuracies") if said else ("score", 1, "losses")
    what = f"drop {said}, or name the column with the {read}" if said else f"say {remedy} of accuracies"
    rule = f"column {name!r} has the name of a {kind}, where {best} is best, so it cannot be read as {read}"
    return f"{rule}; {what}; if it holds {read}, rename it"


def score_said(columns: Mapping[str, Sequence[str]]) -> str:
    """Say which column says of all rows, as `metric` may, that they hold a score that is no mean; "" if none does."""
    for name, values in columns.items():
        said = set(values) if _METRIC.fullmatch(name) else ()
        if problem := next(filter(None, (metric_problem(each, binary=True) for each in said)), ""):
            return f"column {name!r}: {problem}"
    return ""


def _term_in(name: str, terms: str) -> str:
    """The first of the terms that adjacent words of a name make, whatever digits follow it; "" if none do."""
    known, words = terms.split(), [word.lower() for word in _WORD.findall(unicodedata.normalize("NFKC", name))]
    glued = ("".join(words[i : i + k]) for i in range(len(words)) for k in range(1, _MOST_WORDS + 1))
    return next((term for text in glued for term in (text, text.rstrip("0123456789")) if term in known), "")


def warn_of_empty(clients: Sequence[str], *, stacklevel: int) -> None:
    """Warn of clients, if there are any, that had no examples: they measured nothing, and count as missing."""
    if clients:
        rule = "client has 0 examples and counts" if len(clients) == 1 else "clients have 0 examples and count"
        warnings.warn(f"{len(clients)} {rule} as missing: {first_of(clients)}", stacklevel=stacklevel + 1)


def first_of(clients: Sequence[str]) -> str:
    """Name clients, but of many only the first."""
    return ", ".join([*clients[:_MOST_NAMED], *(["..."] if len(clients) > _MOST_NAMED else [])])
