"""Keys and certificates: OpenSSL and OpenSSH accept them, what is there stays, and nobody else can read a key."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from client.secure.trust import trusted_keys
from deploy.make_keys import main, make_deployment

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_deployment(tmp_path, num_nodes=2, names=["fl.example.org", "192.0.2.7"])
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@needs_openssl
@pytest.mark.parametrize(
    ("server", "option", "name", "is_valid"),
    [
        ("superlink", "-verify_hostname", "superlink", True),
        ("superlink", "-verify_hostname", "fl.example.org", True),
        ("superlink", "-verify_hostname", "localhost", True),
        ("superlink", "-verify_ip", "192.0.2.7", True),
        ("superlink", "-verify_ip", "127.0.0.1", True),
        ("proxy", "-verify_hostname", "proxy", True),
        ("proxy", "-verify_hostname", "fl.example.org", True),
        ("proxy", "-verify_hostname", "superlink", False),
        ("supernode-2", "-verify_hostname", "supernode", True),
        ("supernode-2", "-verify_hostname", "superlink", False),
        ("superlink", "-verify_hostname", "supernode", False),
    ],
)
def test_openssl_accepts_a_certificate_for_its_own_names_only(
    folder: Path, server: str, option: str, name: str, is_valid: bool
) -> None:
    keys = folder / "keys"
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(keys / "ca" / "ca.crt")]
    done = subprocess.run([*command, option, name, str(keys / server / "server.crt")], capture_output=True, text=True)
    assert (done.returncode == 0) is is_valid, done.stderr


@needs_openssl
def test_a_certificate_of_another_deployment_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    make_deployment(other, num_nodes=1)
    authority = str(other / "keys" / "ca" / "ca.crt")
    certificate = str(folder / "keys" / "superlink" / "server.crt")
    assert subprocess.run(["openssl", "verify", "-CAfile", authority, certificate], capture_output=True).returncode != 0


@needs_openssh
def test_ssh_keygen_finds_the_registered_public_key_in_the_nodes_private_key(folder: Path) -> None:
    for number in (1, 2):
        private = folder / "keys" / f"supernode-{number}" / "node.key"
        public = (folder / "keys" / "operator" / "nodes" / f"client-{number - 1:05d}.pub").read_text().split()[:2]
        done = subprocess.run(["ssh-keygen", "-y", "-f", str(private)], capture_output=True, text=True, check=True)
        assert done.stdout.split()[:2] == public
        assert public[0] == "ecdsa-sha2-nistp384"


def test_private_keys_are_readable_by_their_owner_alone_and_no_two_services_share_one(folder: Path) -> None:
    found = contents(folder)
    private = {path: content for path, content in found.items() if path.suffix in (".key", ".secret")}
    assert (
        len(private) == 1 + 1 + 3 + 2 * 5
    )  # CA; proxy; SuperLink and ServerApp; for each node: two keys, one that signs, and a secret on both sides
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    keys = [content for path, content in private.items() if path.suffix == ".key"]
    assert len(set(keys)) == len(keys)
    for path, content in private.items():
        if path.suffix == ".secret":
            holders = {other.parent.name for other, held in private.items() if held == content}
            number = path.parent.name.rpartition("-")[2]
            assert holders in ({"superlink", "serverapp"}, {f"supernode-{number}", f"clientapp-{number}"})
    for public, held in (("operator", []), ("clientapp-1", ["signing.key"]), ("serverapp", [])):
        assert [path.name for path in (folder / "keys" / public).glob("**/*.key")] == held


def test_a_second_time_changes_nothing_and_more_nodes_keep_the_old_keys(folder: Path) -> None:
    before = contents(folder)
    make_deployment(folder, num_nodes=2)
    assert contents(folder) == before
    make_deployment(folder, num_nodes=3)
    after = contents(folder)
    lists = {path for path in before if path.name == "clients"}
    assert {path: after[path] for path in before.keys() - lists} == {
        path: before[path] for path in before.keys() - lists
    }
    assert {len(after[path].splitlines()) for path in lists} == {3}
    assert folder / "keys" / "supernode-3" / "node.key" in after
    certificate = x509.load_pem_x509_certificate((folder / "keys" / "supernode-3" / "server.crt").read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(before[folder / "keys" / "ca" / "ca.crt"]))


def test_a_public_key_that_was_deleted_stays_deleted(folder: Path) -> None:
    nodes = folder / "keys" / "operator" / "nodes"
    (nodes / "client-00000.pub").unlink()
    (nodes / "client-00000.signing").unlink()
    make_deployment(folder, num_nodes=2)
    before = contents(folder)
    make_deployment(folder, num_nodes=2)
    assert contents(folder) == before  # made again, it would let a removed client back in


def test_the_public_key_of_a_client_with_a_key_of_its_own_stays(folder: Path) -> None:
    (folder / "keys" / "supernode-1" / "node.key").unlink()
    (folder / "keys" / "clientapp-1" / "signing.key").unlink()
    before = contents(folder)
    make_deployment(folder, num_nodes=2)
    assert contents(folder) == before


def test_no_key_is_made_for_a_removed_client(tmp_path: Path) -> None:
    marker = tmp_path / "keys" / "operator" / "nodes" / "client-00001.removed"
    marker.parent.mkdir(parents=True)
    marker.touch()
    make_deployment(tmp_path, num_nodes=3)
    made = {path.relative_to(tmp_path / "keys").as_posix() for path in contents(tmp_path)}
    assert {name for name in made if "node.key" in name} == {"supernode-1/node.key", "supernode-3/node.key"}
    assert {name for name in made if "signing.key" in name} == {"clientapp-1/signing.key", "clientapp-3/signing.key"}
    assert {name for name in made if name.startswith("operator/nodes")} == {
        *(f"operator/nodes/{name}.{kind}" for name in ("client-00000", "client-00002") for kind in ("pub", "signing")),
        "operator/nodes/client-00001.removed",
    }


def test_who_is_removed_later_is_taken_from_every_list(folder: Path) -> None:
    nodes = folder / "keys" / "operator" / "nodes"
    (nodes / "client-00000.removed").touch()
    make_deployment(folder, num_nodes=2)
    for user in ("operator", "serverapp", "clientapp-1", "clientapp-2"):
        listed = (folder / "keys" / user / "clients").read_bytes()
        assert listed == (nodes / "client-00001.signing").read_bytes().strip() + b" client-00001\n"


@needs_openssh
def test_clients_with_names_have_keys_and_folders_of_their_names_and_may_bring_their_own(tmp_path: Path) -> None:
    names, keys = tmp_path / "names.txt", tmp_path / "made" / "keys"
    names.write_text("hospital-a\n\n  Charité.2 \n", encoding="utf-8")
    own = keys / "clientapp-hospital-a" / "signing.key"
    own.parent.mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own)], check=True)
    public = keys / "operator" / "nodes" / "hospital-a.signing"
    public.parent.mkdir(parents=True)
    shutil.move(own.with_name("signing.key.pub"), public)
    assert main([str(tmp_path / "made"), "--clients", str(names)]) == 0
    names.write_text("Charité.2\nhospital-b\nhospital-a\n", encoding="utf-8")
    before = contents(keys)
    assert main([str(tmp_path / "made"), "--clients", str(names)]) == 0
    everybody = {"hospital-a", "hospital-b", "Charité.2"}
    assert {path.stem for path in public.parent.glob("*.pub")} == everybody
    assert {path.name for path in keys.glob("supernode-*")} == {f"supernode-{name}" for name in everybody}
    assert all((tmp_path / "made" / "data" / f"node-{name}").is_dir() for name in everybody)
    kept = [path for path in before if path.name != "clients"]
    assert all(path.read_bytes() == before[path] for path in kept)
    for name in everybody:
        folder = keys / f"clientapp-{name}"
        config = {"signing-key-file": str(folder / "signing.key"), "secure-clients-file": str(folder / "clients")}
        assert len(trusted_keys(config, least=3) or ()) == 3


@pytest.mark.parametrize(
    "names", ["", "a\na", "a/b", "..", "-x", ".hidden", "two words", "a\\b", "x" * 101], ids=lambda text: text[:10]
)
def test_names_that_cannot_be_those_of_clients_make_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    (tmp_path / "names.txt").write_text(names)
    assert main([str(tmp_path / "made"), "--clients", str(tmp_path / "names.txt")]) == 2
    assert "the names of clients must differ" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_only_its_owner_looks_into_a_deployment_but_a_container_reads_its_data(tmp_path: Path) -> None:
    made_by_the_engine = tmp_path / "state" / "clientapp-1"
    made_by_the_engine.mkdir(parents=True)
    chosen = tmp_path / "state" / "superlink"
    chosen.mkdir()
    (chosen / "superlink.db").touch()
    chosen.chmod(0o750)
    make_deployment(tmp_path, num_nodes=1)
    modes = {p.relative_to(tmp_path).as_posix(): stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*/")}
    services = ("ca", "superlink", "serverapp", "proxy", "operator", "operator/nodes", "supernode-1", "clientapp-1")
    private = {"keys", "data", "results", "state/clientapp-1", *(f"keys/{name}" for name in services)}
    assert {name for name, mode in modes.items() if mode == 0o700} == private
    assert modes["state/superlink"] == 0o750
    assert modes["data/node-1"] & 0o055 == 0o055


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_a_link_points_to_is_not_given_away(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "deployment"
    make_deployment(folder, num_nodes=1)
    (folder / "results").rmdir()
    (folder / "results").symlink_to(elsewhere)
    assert main([str(folder), "--nodes", "1", "--owner", "1234:1235"]) == 0
    assert elsewhere.stat().st_uid == 0
    assert (folder / "results").lstat().st_uid == 1234


def test_half_a_pair_is_an_error_and_not_a_new_pair(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "keys" / "superlink" / "server.crt").unlink()
    with pytest.raises(ValueError, match=r"server.crt must be beside .*server.key"):
        make_deployment(folder, num_nodes=2)
    assert main([str(folder)]) == 2
    assert "restore it, or delete both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "at least 1, got 0"),
        (["--owner", "me"], "UID:GID, got 'me'"),
        (["--owner", "1000"], "UID:GID, got '1000'"),
        (["--name", ""], "must not be empty"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(tmp_path / "new"), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_gets_everything_but_the_key_of_the_authority_and_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data" / "node-1" / "patients.npz"
    data.parent.mkdir(parents=True)
    data.touch()
    assert main([str(tmp_path), "--nodes", "1", "--owner", "1234:1235"]) == 0
    kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.stat().st_uid != 1234}
    assert kept == {"keys/ca", "keys/ca/ca.crt", "keys/ca/ca.key", "data/node-1", "data/node-1/patients.npz"}
