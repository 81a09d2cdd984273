"""What a hostile or broken client may reply; each of these is untrue or unreadable by construction.

A mutation takes (rng, content, name) and edits the content of an honest reply, whose client is called `name`.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

OPTIONAL = ("group", "budget-left", "num-without-gradient")
BAD_NUMBERS = (np.nan, np.inf, -np.inf, -1.0, -1e-3, -1e308)
WORDS = ("", "\x00", "a\nb", "x" * 5000, "🙂" * 101, "none", "exact ", "{}", "../../etc", "%s%n", "lower\x1b[31m")
HUGE = 200_000


def pick(rng, values):
    values = list(values)
    return values[int(rng.integers(len(values)))]


def other_value(rng, value):
    """A value of the wrong type, or out of every range, for a key that holds `value`."""
    if isinstance(value, str):
        return pick(rng, [word for word in WORDS if word != value] + [7, True, [1, 2], b"bytes", -1.5])
    if isinstance(value, list):
        numbers = [[], 0.5, [float(entry) for entry in value] * 2, [1] * len(value), [0.5] * HUGE]
        return pick(rng, [*numbers, [pick(rng, BAD_NUMBERS), *value[1:]]])
    if isinstance(value, int):
        return pick(rng, [-1, -(2**62), float(value), [value], np.nan])
    return pick(rng, [*BAD_NUMBERS, 1, 0, [value], [np.nan] * 50])


def set_some_key(rng, content, name):
    record = content[pick(rng, content)]
    key = pick(rng, record)
    record[key] = other_value(rng, record[key])


def drop_a_key(rng, content, name):
    record = content[pick(rng, content)]
    del record[pick(rng, [key for key in record if key not in OPTIONAL])]


def drop_a_record(rng, content, name):
    del content[pick(rng, content)]


def rename_a_record(rng, content, name):
    old = pick(rng, content)
    content[pick(rng, ["x", old + " ", old.upper()])] = content.pop(old)


def replace_a_record(rng, content, name):
    kinds = [MetricRecord({"a": 1}), ConfigRecord({"a": "b"}), ArrayRecord({"w": Array(np.zeros(HUGE // 10))})]
    old = pick(rng, content)
    content[old] = pick(rng, [kind for kind in kinds if type(kind) is not type(content[old])])


def empty(rng, content, name):
    for key in list(content):
        del content[key]


def another_hash(rng, content, name):
    digits = "".join(rng.choice(list("0123456789abcdef"), 64))
    content["answer"][pick(rng, ["code-hash", "model-hash"])] = digits


def another_version(rng, content, name):
    content["answer"]["protocol-version"] = pick(rng, [0, 1, 2, -1, 2**60, "3", 3.5])


def another_loss(rng, content, name):
    content["answer"]["loss"] = pick(rng, ["margin", "cross_entropy", "accuracy", "zero_one,zero_one", ""])


def an_unknown_name(rng, content, name):
    content["answer"]["client-id"] = pick(rng, ["client-99999", "client-00000 ", "CLIENT-00001", "", "x" * 101, "a\tb"])


def an_unusable_group(rng, content, name):
    content["answer"]["group"] = pick(rng, ["", "x" * 101, "a\nb", 3, 2.5, ["a"]])


def an_impossible_budget(rng, content, name):
    content["answer"]["budget-left"] = pick(rng, [-1, -(2**62), 1.5, np.nan, [3]])


def no_examples(rng, content, name):
    content["answer"]["num-examples"] = pick(rng, [0, -1, -(2**63)])


def a_wrong_number(rng, content, name):
    """Put NaN, infinity or a number outside [0, 1] into one place."""
    answer = content["answer"]
    others = (*OPTIONAL, "num-examples", "adversarial-unit", "protocol-version")
    key = pick(rng, [key for key in answer if key not in others and not isinstance(answer[key], str | bool)])
    if isinstance(answer[key], list):
        values = list(answer[key])
        values[int(rng.integers(len(values)))] = pick(rng, [*BAD_NUMBERS, 1.001, 1e300])
        answer[key] = values
    else:
        answer[key] = pick(rng, [*BAD_NUMBERS, 1.001, 1e300])


def another_length(rng, content, name):
    answer = content["answer"]
    key = pick(rng, [key for key in answer if isinstance(answer[key], list)])
    values = list(answer[key])
    answer[key] = pick(rng, [values[:-1], [*values, values[-1]], values * 1000, []])


def a_curve_that_is_none(rng, content, name):
    """Values that fall, or that rise faster and faster."""
    answer = content["answer"]
    key = pick(rng, ["values-lower", "values-upper"])
    size = len(answer[key])
    rising = np.linspace(0.2, 1.0, size)
    answer[key] = pick(rng, [rising[::-1].tolist(), (rising**4).tolist(), [0.9, 0.1, *[1.0] * (size - 2)]])


def a_contradiction(rng, content, name):
    answer = content["answer"]
    key, values = pick(
        rng,
        [
            ("clean-risk", 1.0),
            ("conjugates-upper", [0.0] * len(answer["conjugates-upper"])),
            ("conjugates-lower", [1.0] * len(answer["conjugates-lower"])),
            ("values-lower", [0.0] * len(answer["values-lower"])),
            ("values-upper", [0.0] * len(answer["values-upper"])),
        ],
    )
    answer[key] = values


def an_impossible_count(rng, content, name):
    answer = content["answer"]
    key = next(key for key in ("clean-risk", "new-risk", "risk") if key in answer)
    answer[key] = pick(rng, [0.05, 1 / 3, 0.123456, np.nextafter(0.5, 1) + 1e-5])


def more_worse_than_there_can_be(rng, content, name):
    """Of 10 examples 4 are wrong before and 3 now: at most 3 can have got worse."""
    content["answer"]["num-worse"] = int(rng.integers(4, 11))


def a_huge_extra_record(rng, content, name):
    content["extra"] = ArrayRecord({"w": Array(np.zeros(HUGE // 10))})


def an_extra_key(rng, content, name):
    content["answer"]["more"] = [0.5] * 100


ANY = (
    set_some_key,
    drop_a_key,
    drop_a_record,
    rename_a_record,
    replace_a_record,
    empty,
    another_version,
    an_unknown_name,
    a_huge_extra_record,
    an_extra_key,
)
OF_AN_ANSWER = (*ANY, another_hash, another_loss, an_unusable_group, no_examples, a_wrong_number)
HARMFUL = {
    "hello": (*ANY, an_impossible_budget),
    "loss": (*OF_AN_ANSWER, an_impossible_count),
    "adversarial_loss": (
        *OF_AN_ANSWER,
        an_impossible_budget,
        another_length,
        a_curve_that_is_none,
        a_contradiction,
        an_impossible_count,
    ),
    "candidates": (*OF_AN_ANSWER, an_impossible_budget, another_length),
    "comparison": (*OF_AN_ANSWER, an_impossible_budget, an_impossible_count, more_worse_than_there_can_be),
}


def a_small_extra_record(rng, content, name):
    content["extra"] = ArrayRecord({"w": Array(np.zeros(HUGE // 2000))})


HARMLESS = (a_small_extra_record,)
