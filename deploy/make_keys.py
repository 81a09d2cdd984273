"""``python -m deploy.make_keys FOLDER``: the keys, certificates and folders of a deployment.

    FOLDER/keys/ca            ca.key: signs certificates. No service reads it; keep it off line when all are signed
    FOLDER/keys/superlink     ca.crt, its certificate and key, the secret it shares with the ServerApp's process
    FOLDER/keys/serverapp     ca.crt, that secret, and clients
    FOLDER/keys/proxy         ca.crt, its certificate and key: what SuperNodes connect to
    FOLDER/keys/operator      ca.crt, clients and, in nodes/, the public keys of every client: nothing secret
    FOLDER/keys/supernode-N   ca.crt, the key that identifies it, its certificate and key, a secret for its ClientApps
    FOLDER/keys/clientapp-N   ca.crt, that secret, the key that signs what the client says (signing.key), and clients
    FOLDER/data/node-N, FOLDER/models, FOLDER/results, FOLDER/state/…

A client has the public keys nodes/NAME.pub, under whose name register_nodes registers it, and nodes/NAME.signing; the
latter are listed in clients, each before its client's name. N is a number for clients with default names, or else the
client's name.

What is there already is left as it is, so the command may run before every start, and a later one with more nodes adds
the new ones, to the lists of clients as well. To replace a key, delete it with its certificate or public key. A
public key is written with its private key only: one that was deleted stays deleted, and one whose private key is
elsewhere stays as it is. For a client that has the marker operator/nodes/NAME.removed no key is made, and none listed.

Folders of keys, state, results and data are made for their owner alone, but for data/node-N: a container's user reads
them.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from client.identity import default_name
from deploy.register_nodes import is_removed

CA_DAYS = 3650
SERVER_DAYS = 825  # the longest that common TLS libraries accept of a server
_CURVE = ec.SECP384R1()  # Flower accepts NIST curves for SuperNodes


def make_deployment(folder: Path, *, num_nodes: int, names: Sequence[str] = (), clients: Sequence[str] = ()) -> None:
    """Make the keys and folders of a deployment with so many SuperNodes that are not there yet.

    With names of clients there is one for each of these instead; see `checked_clients`.
    The names are DNS names or IP addresses by which SuperNodes reach the proxy, or others the SuperLink; the names of
    both in docker-compose.yml, "localhost" and "127.0.0.1" are added. Raises ValueError if there are no nodes, a name
    is empty, or a key is there whose other half is not.
    """
    if num_nodes < 1:
        raise ValueError(f"the number of nodes must be at least 1, got {num_nodes}; a deployment has clients")
    if not all(names):
        raise ValueError(f"the names of the SuperLink must not be empty, got {list(names)}; say how nodes reach it")
    keys = folder / "keys"
    for private in (keys, folder / "state", folder / "data", keys / "operator"):
        _make_private(private)
    _make_ca(keys / "ca")
    name_of = {name: name for name in clients} or {str(n): default_name(n - 1) for n in range(1, num_nodes + 1)}
    servers = [
        ("superlink", "serverapp", ("superlink", *names)),
        *((f"supernode-{n}", f"clientapp-{n}", ("supernode",)) for n in name_of),
    ]
    for server, executor, own_names in servers:
        _make_server(keys / server, ca=keys / "ca", names=own_names)
        _make_secret(keys / server, keys / executor)
    _make_server(keys / "proxy", ca=keys / "ca", names=("proxy", *names))
    nodes = keys / "operator" / "nodes"
    for number, client in name_of.items():
        _make_pair(keys / f"supernode-{number}" / "node.key", nodes / f"{client}.pub", ec.generate_private_key(_CURVE))
        signing = ed25519.Ed25519PrivateKey.generate()
        _make_pair(keys / f"clientapp-{number}" / "signing.key", nodes / f"{client}.signing", signing)
        (folder / "data" / f"node-{number}").mkdir(parents=True, exist_ok=True)
    public_keys = (public for public in sorted(nodes.glob("*.signing")) if not is_removed(public))
    # A key that was made elsewhere has another comment.
    listed = [b"%s %s %s\n" % (*public.read_bytes().split()[:2], public.stem.encode()) for public in public_keys]
    for user in ["operator", "serverapp", *(f"clientapp-{number}" for number in name_of)]:
        _write(keys / user / "clients", b"".join(listed), mode=0o644)
    for user in [*(name for pair in servers for name in pair[:2]), "proxy", "operator"]:
        _write(keys / user / "ca.crt", (keys / "ca" / "ca.crt").read_bytes(), mode=0o644)
    for state in ["superlink", *(f"clientapp-{number}" for number in name_of)]:
        _make_private(folder / "state" / state)
    _make_private(folder / "results")
    (folder / "models").mkdir(exist_ok=True)


def checked_clients(text: str) -> list[str]:
    """Return the names of clients, one a line; raises ValueError if there is none, one twice or one that may not be."""
    names = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [name for name in names if not re.fullmatch(r"\w[\w.-]{0,99}", name) or names.count(name) > 1]
    if wrong or not names:
        raise ValueError(
            f"the names of clients must differ, and have 1 to 100 letters, digits, '.', '-' or '_', got {wrong[:3]} "
            f"among {len(names)}; a public key's file is called so"
        )
    return names


def give(folder: Path, *, uid: int, gid: int) -> None:
    """Make a user the owner of a deployment: all of it but the data, which have an owner, and the CA's key."""
    for path in [folder, *(folder / name for name in ("keys", "data", "results", "models"))]:
        os.chown(path, uid, gid, follow_symlinks=False)
    for top in [folder / "state", *(path for path in (folder / "keys").iterdir() if path.name != "ca")]:
        for path in [top, *top.rglob("*")]:
            os.chown(path, uid, gid, follow_symlinks=False)


def _make_ca(folder: Path) -> None:
    if _is_there(folder / "ca.key", folder / "ca.crt"):
        return
    key = ec.generate_private_key(_CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "riskband deployment")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # sign certificates and CRLs
    builder = _certificate(name, name, key.public_key(), days=CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    _write(folder / "ca.key", _pem(key), mode=0o600)
    _write(folder / "ca.crt", builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM), mode=0o644)


def _make_server(folder: Path, *, ca: Path, names: Sequence[str]) -> None:
    """A key and a certificate for a server that is reached under some names, and under localhost from within."""
    if _is_there(folder / "server.key", folder / "server.crt"):
        return
    issuer = x509.load_pem_x509_certificate((ca / "ca.crt").read_bytes())
    signer = load_pem_private_key((ca / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    every_name = dict.fromkeys([*names, "localhost", "127.0.0.1"])
    builder = _certificate(subject, issuer.subject, key.public_key(), days=SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(n) for n in every_name]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(authority, critical=False)
    _write(folder / "server.key", _pem(key), mode=0o600)
    _write(folder / "server.crt", builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM), mode=0o644)


def _make_pair(private: Path, public: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> None:
    """Write a key that identifies a client, in the formats that Flower reads: OpenSSH.

    The public half decides who may take part, so it is made with its key or not at all: made again from a key that is
    there, it would let a removed client back in; of a new key, it would replace that of a client with a key of its own.
    """
    if private.exists() or public.exists() or is_removed(public):
        return
    _write(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), mode=0o600)
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n", mode=0o644)


def _make_secret(*folders: Path) -> None:
    """A secret that both sides of a Runtime API hold: who has it may fetch tasks."""
    paths = [folder / "superexec.secret" for folder in folders]
    if not _is_there(*paths):
        secret = secrets.token_hex(32).encode()
        for path in paths:
            _write(path, secret, mode=0o600)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))  # clocks of other hosts differ a little
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _is_there(*paths: Path) -> bool:
    """Whether all files are there; some without the others would be a pair that does not fit."""
    missing = [path for path in paths if not path.exists()]
    if missing and len(missing) < len(paths):
        there = next(path for path in paths if path.exists())
        raise ValueError(f"{missing[0]} must be beside {there}, but is not there; restore it, or delete both")
    return not missing


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner can look into. One with files in it keeps its permissions: they are chosen."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(folder.iterdir()):  # perhaps made by the container engine, to have something to mount
        folder.chmod(0o700)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file whose permissions are right from the first byte on, whole or not at all."""
    _make_private(path.parent)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 2 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m deploy.make_keys", description="Make what a deployment needs.")
    parser.add_argument("folder", type=Path)
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--nodes", type=int, default=4, help="number of SuperNodes, for clients with default names")
    who.add_argument("--clients", type=Path, metavar="FILE", help="the names of the clients, one a line")
    parser.add_argument("--name", action="append", help="DNS name or IP address of the proxy; may be repeated")
    parser.add_argument("--owner", metavar="UID:GID", help="user and group that the services run as")
    options = parser.parse_args(arguments)
    try:
        clients = checked_clients(options.clients.read_text(encoding="utf-8")) if options.clients else []
        num_nodes = len(clients) or options.nodes
        make_deployment(options.folder, num_nodes=num_nodes, names=options.name or [], clients=clients)
        if options.owner:
            uid, _, gid = options.owner.partition(":")
            if not (uid.isdecimal() and gid.isdecimal()):
                raise ValueError(f"--owner must be two numbers UID:GID, got {options.owner!r}; see `id`")
            give(options.folder, uid=int(uid), gid=int(gid))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
