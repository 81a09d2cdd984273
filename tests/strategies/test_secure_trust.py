"""A client with a list of those it trusts takes part with no others: the server can invent none of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from client.refusals import WithheldError
from client.secure.part import begun, hidden, holding, shared
from client.secure.trust import trusted_keys
from protocol import wire
from protocol.secure import cryptography as secure
from protocol.secure.questions import HeldShares, SharesQuery
from riskband.checks import RefusedError
from strategies.asking.query import QuorumError
from tests.strategies.network import name_of
from tests.strategies.secure_network import NUM_EXAMPLES, Recording, adding, changing, risk_of, run

NUM, RUN = 10, "1"
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([k + 1]) * 32) for k in range(NUM)]
LISTED = frozenset(key.public_key().public_bytes_raw() for key in KEYS)


def line_of(key):
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def private_of(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


@pytest.fixture
def trusting(tmp_path):
    """The node config of a client that has a key, by partition; all but `without` are listed."""

    def configs(*, without=(), unsigned=()):
        listed = tmp_path / "clients"
        listed.write_bytes(b"".join(line_of(key) for k, key in enumerate(KEYS) if k not in without))
        for k, key in enumerate(KEYS):
            (tmp_path / f"{k}.key").write_bytes(private_of(key))

        def config(k):
            own = {} if k in unsigned else {"signing-key-file": str(tmp_path / f"{k}.key")}
            trust = {} if k in {*without, *unsigned} else {"secure-clients-file": str(listed)}
            return {"secure-min-clients": 3} | own | trust

        return config

    return configs


def counts_of(*partitions):
    counted = [round(risk_of(k) * NUM_EXAMPLES) for k in partitions]
    return (tuple(np.bincount(counted, minlength=NUM_EXAMPLES + 1).tolist()),)


@pytest.mark.parametrize("num_neighbours", [30, 4])
def test_clients_that_list_each_other_are_counted(trusting, num_neighbours):
    found, _ = run(NUM, grid=Recording(NUM, node_config=trusting()), num_neighbours=num_neighbours)
    assert found.outcome.counts == counts_of(*range(NUM))
    assert not found.outcome.failures


def test_clients_that_list_each_other_are_asked_again_in_groups_with_new_signed_keys(trusting):
    grid = Recording(NUM, {5: adding({0: 1})}, trusting())
    found, _ = run(NUM, grid=grid, group_size=5, quorum=0.2)
    (wrong,) = found.outcome.wrong_groups
    assert name_of(5) in wrong
    assert found.outcome.counts == counts_of(*(k for k in range(NUM) if name_of(k) not in wrong))
    answers = [reply.content["answer"] for reply in grid.replies if not reply.has_error()]
    sent = [answer for answer in answers if "signer" in answer]
    assert (
        len(sent)
        == len({answer["encryption"] for answer in sent})
        == len({each["signature"] for each in sent})
        == 2 * NUM
    )
    assert len({answer["signer"] for answer in sent}) == NUM


def test_a_signature_that_is_wrong_the_second_time_is_named(trusting):
    def behave(message, answer):
        spoil = changing("secure_keys", lambda record: record.update({"signature": bytes(64)}))
        return (spoil if int(wire.round_of(message.metadata.group_id)) > 5 else adding({0: 1}))(message, answer)

    found, _ = run(NUM, grid=Recording(NUM, {5: behave}, trusting()), group_size=5, quorum=0.2)
    reasons = {failure.client_id: failure.reason.value for failure in found.outcome.failures}
    assert len(reasons) == 5
    assert reasons.pop(name_of(5)) == "malformed"
    assert set(reasons.values()) == {"no-sum"}


# Servers that invent clients.


def members_of(victim, others):
    """What the server says: the victim is the first, under its own keys, and the others have these."""
    own = victim.secrets.public.signed(KEYS[0], run_id=RUN)
    return dict(enumerate([own, *others], start=1))


def invented():
    return [secure.Secrets.fresh() for _ in range(NUM - 1)]


def asked(victim, others, *, trusted):
    query = SharesQuery(1, secure.threshold_of(NUM), members_of(victim, others), is_complete=True)
    return shared(victim, query, min_clients=NUM, needs_complete=True, trusted=trusted)


def test_without_a_list_a_server_that_invents_all_others_reads_one_clients_bin():
    """The negative control of the tests below, and why `secure-clients-file` is there."""
    victim, sybils = begun(1), invented()
    others = [each.public for each in sybils]
    victim, sent = asked(victim, others, trusted=None)
    group, question = victim.group, b"q" * 32
    shares = dict(zip(sent.numbers, sent.shares, strict=True))
    mine = victim.secrets.public
    held = {
        number: secure.opened(shares[number], each, mine, route=(1, number), group=group)
        for number, each in enumerate(sybils, start=2)
    }
    forged = [
        secure.sealed(bytes(secure.SHARE_BYTES), each, mine, route=(number, 1), group=group)
        for number, each in enumerate(sybils, start=2)
    ]
    victim, _ = holding(victim, HeldShares(tuple(held), tuple(forged)), question=question, min_clients=NUM)
    masked = np.frombuffer(hidden(victim, np.eye(8, dtype=np.int64)[5]), dtype=secure.WORD)
    seed = secure.combined({n: held[n][: secure.SEED_BYTES] for n in sorted(held)[: secure.threshold_of(NUM)]})
    plain = masked - secure.own_mask(seed, 8, own=1, held=range(1, NUM + 1), question=question)
    for number, each in enumerate(sybils, start=2):
        plain = plain + secure.pair_mask(each.masking, mine.masking, 8, route=(number, 1), question=question)
    assert plain.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def honest():
    return [secure.Secrets.fresh().public.signed(key, run_id=RUN) for key in KEYS[1:]]


def with_last(others, keys):
    return [*others[:-1], keys]


STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
INVENTED = {
    "all, without signatures": lambda: [each.public for each in invented()],
    "all, signed by one that is not listed": lambda: [each.public.signed(STRANGER, run_id=RUN) for each in invented()],
    "one, without a signature": lambda: with_last(honest(), secure.Secrets.fresh().public),
    "one under the name of a listed key": lambda: with_last(
        honest(),
        dataclasses.replace(secure.Secrets.fresh().public.signed(STRANGER, run_id=RUN), signer=honest()[-1].signer),
    ),
    "one with the signature of a listed key": lambda: with_last(
        honest(),
        dataclasses.replace(honest()[-1], encryption=secure.Secrets.fresh().public.encryption),
    ),
    "one with a masking key of its own": lambda: with_last(
        honest(), dataclasses.replace(honest()[-1], masking=secure.Secrets.fresh().public.masking)
    ),
    "one with keys of another run": lambda: with_last(
        honest(), secure.Secrets.fresh().public.signed(KEYS[-1], run_id="2")
    ),
    "one with a second signature of a listed key": lambda: with_last(
        honest(), secure.Secrets.fresh().public.signed(KEYS[1], run_id=RUN)
    ),
}


def test_a_client_shares_its_secrets_with_those_that_are_listed():
    after, sent = asked(begun(1), honest(), trusted=LISTED)
    assert set(after.members) == {1, *sent.numbers}


@pytest.mark.parametrize("what", INVENTED)
def test_a_server_that_invents_clients_gets_no_share(what):
    rule = "for one participant, and one does for two" if "second" in what else "must have keys signed by those"
    with pytest.raises(RefusedError, match=rule):
        asked(begun(1), INVENTED[what](), trusted=LISTED)


@pytest.mark.parametrize("who", [{"without": {4}}, {"unsigned": {4}}], ids=["not listed", "no key"])
def test_with_a_client_that_is_not_listed_nobody_who_lists_the_others_takes_part(trusting, who):
    with pytest.raises(QuorumError, match="1 have not, the first being number 5 in the order of names"):
        run(NUM, grid=Recording(NUM, node_config=trusting(**who)))


# Clients that spoil the signatures for others.


def test_a_wrong_signature_is_named_before_others_see_it(trusting):
    behave = changing("secure_keys", lambda record: record.update({"signature": bytes(64)}))
    found, _ = run(NUM, grid=Recording(NUM, {2: behave}, trusting()))
    assert [(f.client_id, f.reason.value) for f in found.outcome.failures] == [(name_of(2), "malformed")]
    assert found.outcome.counts == counts_of(*(k for k in range(NUM) if k != 2))


def test_two_clients_that_sign_with_one_key_are_left_out(trusting):
    def config(k):
        return trusting()(k) | ({"signing-key-file": trusting()(2)["signing-key-file"]} if k == 5 else {})

    found, _ = run(NUM, grid=Recording(NUM, node_config=config))
    assert [(f.client_id, f.reason.value) for f in found.outcome.failures] == [
        (name_of(2), "claimed-twice"),
        (name_of(5), "claimed-twice"),
    ]
    assert found.outcome.counts == counts_of(*(k for k in range(NUM) if k not in (2, 5)))


def test_a_key_that_looks_like_anothers_signer_takes_nothing_from_it(trusting):
    behave = changing("secure_keys", lambda record: record.update({"masking": signer, "signer": b"", "signature": b""}))
    signer = KEYS[5].public_key().public_bytes_raw()
    config = trusting()
    found, _ = run(
        NUM,
        grid=Recording(
            NUM, {2: behave}, lambda k: {"secure-min-clients": 3, "signing-key-file": config(k)["signing-key-file"]}
        ),
    )
    assert name_of(5) in {answer.client_id for answer in found.outcome.answers}


# What a client reads.


def test_without_a_list_whoever_the_server_names_is_trusted():
    assert trusted_keys({}, least=3) is None


@pytest.mark.parametrize(
    ("listed", "own", "message"),
    [
        (b"".join(map(line_of, KEYS[1:])), private_of(KEYS[0]), "must be among those of secure-clients-file"),
        (b"\n" + line_of(KEYS[0]) * 3 + line_of(KEYS[1]), private_of(KEYS[0]), "at least 3 clients, got 2"),
        (b"", private_of(KEYS[0]), "must be among"),
        (line_of(KEYS[0]) + b"ssh-ed25519 AAAA", private_of(KEYS[0]), "secure-clients-file must hold Ed25519 keys"),
        (line_of(generate_private_key(SECP256R1())), private_of(KEYS[0]), "secure-clients-file must hold Ed25519 keys"),
        (line_of(KEYS[0]), b"", "signing-key-file must hold Ed25519 keys"),
        (line_of(KEYS[0]), private_of(generate_private_key(SECP256R1())), "signing-key-file must hold Ed25519 keys"),
    ],
)
def test_a_list_or_key_that_cannot_be_is_refused(tmp_path, listed, own, message):
    (tmp_path / "list").write_bytes(listed)
    (tmp_path / "key").write_bytes(own)
    config = {"secure-clients-file": str(tmp_path / "list"), "signing-key-file": str(tmp_path / "key")}
    with pytest.raises(RefusedError, match=message):
        trusted_keys(config, least=3)
    (tmp_path / "list").unlink()
    with pytest.raises(WithheldError, match="reading secure-clients-file failed"):
        trusted_keys(config, least=3)
    with pytest.raises(WithheldError, match="reading secure-clients-file failed"):
        trusted_keys({key: str(tmp_path / "list") for key in config}, least=3)


def test_a_list_without_an_own_key_is_refused(tmp_path):
    (tmp_path / "list").write_bytes(b"".join(map(line_of, KEYS)))
    with pytest.raises(RefusedError, match="the key in signing-key-file must be among"):
        trusted_keys({"secure-clients-file": str(tmp_path / "list")}, least=3)
